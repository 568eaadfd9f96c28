"""What the engines' install functions have in common: verify the table, hook what is as expected, say what is not."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .hooks import Hooks, Wrapper
from .targets import Finding, Target, look_at_all

ASKED = "asked"  # the role of a target that is only called, so verified but not wrapped


@dataclass
class Installation:
    """The outcome of one engine's install. essential: parts without which nothing is hooked."""

    engine: str
    version: str
    findings: list[Finding]
    essential: tuple[str, ...] = ()
    hooks: Hooks | None = None
    parts_off: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return [finding.problem for finding in self.findings if finding.problem]

    @property
    def is_off(self) -> bool:
        """Whether nothing at all is hooked."""
        return any(part in self.parts_off for part in self.essential)

    def summary(self) -> str:
        """One line: N of M targets, and what is off because of the others."""
        failed = [] if self.hooks is None else self.hooks.failed
        num_found = len(self.findings) - len(self.problems) - len(failed)
        text = f"{self.engine} {self.version}: {num_found} of {len(self.findings)} targets"
        if self.is_off:
            text += f"; prefetching is off, since it needs: {', '.join(self.problems)}"
        elif self.problems:
            text += f"; off: {', '.join(self.parts_off)} ({'; '.join(self.problems)})"
        if failed:
            text += f"; could not be hooked: {', '.join(failed)}"
        return text


def install_targets(
    installation: Installation, wrappers: Mapping[str, Wrapper], logger: logging.Logger, *, strict: bool
) -> Hooks:
    """Hooks every target of the parts that are whole. In strict mode one bad target stops the process (SystemExit)."""
    installation.parts_off = sorted({f.target.part for f in installation.findings if f.problem})
    hooks = installation.hooks = Hooks(logger)
    if installation.problems:
        if strict:
            raise SystemExit(f"dsv41_l2pf (strict): {installation.summary()}")
        logger.warning("dsv41_l2pf: %s", installation.summary())
    if installation.is_off:
        return hooks
    for finding in installation.findings:
        target = finding.target
        if target.part not in installation.parts_off and target.role != ASKED:
            hooks.add(target, wrappers[target.role])
    return hooks


def look(engine: str, version: str, targets: Iterable[Target], essential: tuple[str, ...] = ()) -> Installation:
    """Verifies the targets without importing anything."""
    return Installation(engine, version, look_at_all(targets), essential)


