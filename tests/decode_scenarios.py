"""Tensor-parallel decode of a transformers Llama on two ranks: what must hold with real collectives, ours on or off.

A scenario runs on both ranks at once and returns plain data. With NCCL on GPUs steps are captured graphs, with gloo on
CPUs they are eager. A difference between outputs on and off raises on both ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks import sharded
from benchmarks.multi_gpu_case import Case, Step
from benchmarks.ranks import Ranks
from benchmarks.transformers_decode import MODE, settings_of, signature_of, warm_up
from benchmarks.transports import Transport, make

import dsv41_l2pf as l2pf
from dsv41_l2pf.demo.gpu_model import Decoder

NUM_LAYERS = 2
NUM_WINDOWS = 2 * NUM_LAYERS  # behind o_proj and behind down_proj
LATCH = "a device call failed"


@dataclass(frozen=True)
class Setting:
    """Where a scenario runs."""

    ranks: Ranks
    transport: Transport

    @property
    def is_first(self) -> bool:
        return self.ranks.is_first


class Model:
    """One rank's slice, with what it decodes without us as the result to match."""

    def __init__(self, setting: Setting, dtype: str = "bf16") -> None:
        ranks = setting.ranks
        self._kernel = setting.transport.kernel
        width = 1024 if ranks.device.type == "cuda" else 64
        model = sharded.make_slice(sharded.tiny_config(NUM_LAYERS, 2, width), dtype, ranks.rank, ranks.device)
        collectives = sharded.Collectives(model, setting.transport)
        self.case = Case("decode", ranks, Decoder(model), collectives)
        warm_up(self.case.decoder)
        self.off = self.case.capture()
        self.case.expect_of(self.off)

    def attach(self, **config: Any) -> l2pf.Prefetcher:
        """Attaches and learns."""
        prefetcher = l2pf.attach(self.case.decoder.model, l2pf.Config(**config), mode=MODE)
        warm_up(self.case.decoder)
        return prefetcher

    def capture(self, name: str) -> Step:
        """A step that decodes what the step without us does, bit for bit."""
        step = self.case.capture()
        self.case.require_same(name, step)
        return step

    def num_nodes(self, step: Step, signature: dict, reason: str) -> int:
        """Nodes of the step's graph, each behind its collective. Without a graph: windows that are on."""
        if not self.case.on_gpu:
            return 0 if reason else sum(window["budget_bytes"] > 0 for window in signature["windows"])
        from graph_inspect import PREFETCH, assert_behind, assert_joined, read_graph

        graph = read_graph(step.graph)
        nodes, collectives = graph.kernels(PREFETCH), graph.kernels(self._kernel)
        assert len(collectives) == NUM_WINDOWS
        if nodes:
            indices = [window["collective_index"] for window in signature["windows"] if window["budget_bytes"]]
            assert_behind(graph, nodes, [collectives[index] for index in indices])
            assert_joined(graph, nodes[-1])
        return len(nodes)

    def result(self, prefetcher: l2pf.Prefetcher, step: Step) -> dict[str, Any]:
        signatures = [found for found in prefetcher.status()["signatures"] if found["windows"]]
        signature = signatures[0] if signatures else {"reason": "", "windows": [], "state": "unlearned"}
        reason = prefetcher.status()["reason"] or signature["reason"]
        return {
            "num_nodes": self.num_nodes(step, signature, reason),
            "ranks_agree": self.case.ranks_agree(),
            "state": signature["state"],
            "windows": [[window["collective_index"], window["window_bytes"]] for window in signature["windows"]],
            "reason": reason,
        }


def on_and_off(setting: Setting) -> dict[str, Any]:
    model = Model(setting)
    prefetcher = model.attach()
    step = model.capture("on")
    prefetches = model.result(prefetcher, step)
    prefetcher.detach()
    model.case.require_same("the graph without us, afterwards", model.off)
    return prefetches


def one_rank_latched_off(setting: Setting) -> dict[str, Any]:
    """Rank 1 latches off after it has learned: its collectives still run, and run alike."""
    model = Model(setting)
    prefetcher = model.attach()
    if not setting.is_first:
        prefetcher.windows.error = LATCH  # what the first error of an operator leaves behind
    return model.result(prefetcher, model.capture("one rank latched off"))


def different_plans(setting: Setting) -> dict[str, Any]:
    """Rank 1 has other weights, another budget, and its first window off before the capture."""
    model = Model(setting, "bf16" if setting.is_first else "fp8")
    prefetcher = model.attach(**({} if setting.is_first else {"budget_bytes": 1 << 12}))
    if not setting.is_first:
        prefetcher.set_window(0, num_tokens=1, mode=MODE, budget_bytes=0, model=model.case.decoder.model)
    warm_up(model.case.decoder)
    return model.result(prefetcher, model.capture("different plans"))


def relearn_and_recapture(setting: Setting, num_rounds: int = 2) -> dict[str, Any]:
    """Both ranks learn and capture anew in every round; in odd rounds only rank 0 forgets its plan first."""
    model = Model(setting)
    prefetcher = model.attach()
    steps, windows = [model.capture("first")], []
    for round_index in range(num_rounds):
        if setting.is_first or round_index % 2 == 0:
            prefetcher.invalidate()
        warm_up(model.case.decoder)
        steps.append(model.capture(f"round {round_index}"))
        windows.append(model.result(prefetcher, steps[-1])["windows"])
    for step in steps:
        model.case.require_same("an earlier graph, afterwards", step)
    return {**model.result(prefetcher, steps[-1]), "same_plan": all(found == windows[0] for found in windows)}


def tune(setting: Setting, one_latched_off: bool = False) -> dict[str, Any]:
    """Times mean nothing where ranks share a GPU or a CPU: the decision only has to be one, and outputs the same."""
    model = Model(setting)
    prefetcher = model.attach()
    step = model.capture("before tune")
    if one_latched_off and not setting.is_first:
        prefetcher.invalidate()
        prefetcher.windows.error = LATCH
    found = prefetcher.tune(
        model.case.steps.replay_of(step),
        num_tokens=1,
        rounds=2,
        baseline=model.case.steps.replay_of(model.off) if model.case.on_gpu else None,
        process_group=setting.ranks.host,
        progress=False,
    )
    model.case.require_same("after tune", step)
    result = {"decision": [found.ratio, found.noise, found.step_us, found.measured], "reason": found.reason}
    result["num_windows"] = len(found.windows)
    if found.windows:
        settings = settings_of(signature_of(prefetcher, 1))
        result["is_set"] = settings == [(w.collective_index, w.budget_bytes, w.form) for w in found.windows]
    return result


def tune_with_one_rank_latched_off(setting: Setting) -> dict[str, Any]:
    return tune(setting, one_latched_off=True)


SCENARIOS = (
    on_and_off,
    one_rank_latched_off,
    different_plans,
    relearn_and_recapture,
    tune,
    tune_with_one_rank_latched_off,
)


def run_all(
    ranks: Ranks, transport: str, scenarios: tuple[Callable[[Setting], dict[str, Any]], ...] = SCENARIOS
) -> dict[str, Any]:
    """What every scenario returned on this rank, by name. transport: as `benchmarks.transports.make` knows it."""
    setting = Setting(ranks, make(transport))
    with torch.inference_mode():
        return {scenario.__name__: scenario(setting) for scenario in scenarios}
