"""The serving engines that are installed, and every function of theirs that we hook, without importing them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

from ..integrations import b12x_targets, sglang_targets, vllm_targets
from ..integrations.targets import Target, look_at, source_of, version_of

FOUND, CHANGED, ELSEWHERE, MISSING = "found", "changed", "not in this version", "missing"
_OURS = "dsv41_l2pf"


@dataclass(frozen=True)
class HookFacts:
    """One hook target. state: found; changed, which is fine (parameters that we pass through differ); not in this
    version, which is fine too; missing, with a problem.
    """

    path: str
    part: str
    state: str
    problem: str = ""


@dataclass(frozen=True)
class EngineFacts:
    """recorded_version: the one that the table of targets was made with. is_registered: the engine will find our
    plugin; None for an engine without plugins. hooks: empty when the engine is not installed.
    """

    name: str
    is_installed: bool
    version: str
    recorded_version: str
    is_registered: bool | None
    hooks: tuple[HookFacts, ...] = ()

    @property
    def findings(self) -> list[str]:
        """What does not work of an installed engine."""
        if not self.is_installed:
            return []
        missing = dict.fromkeys((hook.problem, hook.part) for hook in self.hooks if hook.problem)
        problems = [f"{self.name} {self.version}: {problem}, so {part} is off" for problem, part in missing]
        if self.is_registered is False:
            problems.append(f"{self.name} {self.version}: it does not see our plugin: pip install dsv41-l2pf")
        return problems


def look_at_engines() -> list[EngineFacts]:
    """One entry an engine that we know, installed or not."""
    return [
        _look_at("sglang", sglang_targets.VERSION, sglang_targets.TARGETS, "sglang.srt.plugins"),
        _look_at("vllm", vllm_targets.VERSION, vllm_targets.TARGETS, "vllm.general_plugins"),
        # Other packages bring parts of b12x along, without collectives.
        _look_at("b12x", b12x_targets.VERSION, b12x_targets.TARGETS, "", module=b12x_targets.MODULE),
    ]


def _look_at(
    name: str, recorded_version: str, targets: Iterable[Target], plugin_group: str, module: str = ""
) -> EngineFacts:
    """module: the one without which there is nothing to hook; the package itself when ''."""
    if source_of(module or name) is None:
        return EngineFacts(name, False, "", recorded_version, None)
    is_registered = None
    if plugin_group:
        is_registered = any(entry.name == _OURS for entry in metadata.entry_points(group=plugin_group))
    hooks = tuple(_hook(target) for target in targets)
    return EngineFacts(name, True, version_of(name), recorded_version, is_registered, hooks)


def _hook(target: Target) -> HookFacts:
    finding = look_at(target)
    if finding.problem:
        if target.optional and finding.parameters is None:
            return HookFacts(target.path, target.part, ELSEWHERE)
        return HookFacts(target.path, target.part, MISSING, finding.problem)
    return HookFacts(target.path, target.part, CHANGED if finding.changed else FOUND)
