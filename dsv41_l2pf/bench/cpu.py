"""What the operators cost the host: outside a forward, where they do nothing, and as learned windows in eager code."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from ..config import Config
from ..prefetcher import Prefetcher

NUM_ROUNDS = 40
_NUM_CALLS = 500
_NUM_WINDOWS = 64
_WEIGHT_BYTES = 64 << 10  # small: what is timed is the host
_KIND = "all_reduce"
SCALE = "for scale: aten.is_same_size"


def host_costs_us(advance: Callable[[], None]) -> dict[str, float]:
    """Median host time in us of one call, or of one window, by name; in turns. advance: called every round."""
    data = torch.ones(1024)
    weight = torch.zeros(_WEIGHT_BYTES, dtype=torch.uint8)
    ops = torch.ops.dsv41
    loops = {
        SCALE: _calls(torch.ops.aten.is_same_size, data, data),
        "collective_begin, outside a forward": _calls(ops.collective_begin, data, _KIND),
        "collective_end, outside a forward": _calls(ops.collective_end, data),
        "record_weight, outside a forward": _calls(ops.record_weight, [weight]),
        "end_forward, outside a forward": _calls(ops.end_forward),
    }
    prefetcher = Prefetcher(Config())
    weights = [torch.zeros(_WEIGHT_BYTES, dtype=torch.uint8) for _ in range(_NUM_WINDOWS)]
    runs = {name: (loop, _NUM_CALLS) for name, loop in loops.items()}
    runs["a learned window: begin, end, record"] = (_windows(prefetcher, data, weights), _NUM_WINDOWS)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(NUM_ROUNDS):
        for name, (run, count) in runs.items():
            begin_ns = time.perf_counter_ns()
            run()
            times[name].append((time.perf_counter_ns() - begin_ns) / 1e3 / count)
        advance()
    return {name: statistics.median(found) for name, found in times.items()}


def _calls(op: Callable, *arguments: object) -> Callable[[], None]:
    def run() -> None:
        for _ in range(_NUM_CALLS):
            op(*arguments)

    return run


def _windows(prefetcher: Prefetcher, data: torch.Tensor, weights: list[torch.Tensor]) -> Callable[[], None]:
    ops = torch.ops.dsv41

    def run() -> None:
        with prefetcher.forward(1):
            for weight in weights:
                ops.collective_begin(data, _KIND)
                ops.collective_end(data)
                ops.record_weight([weight])

    return run
