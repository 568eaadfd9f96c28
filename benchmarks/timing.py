"""Captures steps into CUDA graphs and times their replays in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from dsv41_l2pf.demo.arms import Arm, interleave

from . import native

OFF, NULL = "off", "null"
# The library learns in the first, times its windows in the second and reads those times in the third.
NUM_WARM_UPS = 3
# The first replay after another arm's finds other bytes in L2 and is not counted.
REPLAYS_PER_BLOCK = 4
# The GPU is held this long while the host enqueues a block, so that launches never show in the times.
_HOLD_US = 600.0


@dataclass
class Captured:
    """A step in a CUDA graph, and the tensors that it writes at every replay; the last one it also reads.

    step: what was captured; it owns what the graph reads.
    """

    graph: torch.cuda.CUDAGraph
    outputs: list[torch.Tensor]
    step: Callable[[], list[torch.Tensor]]

    def replay(self) -> None:
        self.graph.replay()


def capture(step: Callable[[], list[torch.Tensor]], main_priority: int = 0) -> Captured:
    """Runs `step` eagerly a few times, then captures it on a stream of `main_priority` (-1 is higher than 0)."""
    stream = torch.cuda.Stream(priority=main_priority)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(NUM_WARM_UPS):
            step()
            torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outputs = step()
    return Captured(graph, outputs, step)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def require_same_outputs(name: str, captured: Captured, reference: Captured) -> None:
    """Raises RuntimeError unless a replay of `captured` writes what one of `reference` writes, bit for bit."""
    reference.replay()
    expected = [_bytes_of(output).clone() for output in reference.outputs]
    for output in captured.outputs[:-1]:
        output.fill_(torch.nan)  # what the replay does not write must not pass
    captured.replay()
    torch.cuda.synchronize()
    different = sum(not torch.equal(_bytes_of(got), want) for got, want in zip(captured.outputs, expected, strict=True))
    if different:
        raise RuntimeError(f"{name}: {different} of {len(expected)} outputs differ from off: nothing was timed")


@dataclass
class Timed:
    """One way to run the step. prepare: called before each of its blocks, on the stream that replays."""

    name: str
    replay: Callable[[], None]
    prepare: Callable[[], None] = lambda: None
    notes: dict[str, Any] = field(default_factory=dict)


def gpu_block(replay: Callable[[], None], num_replays: int) -> list[float]:
    """The times of `num_replays` back-to-back replays in us, after one that is not counted."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(num_replays + 1)]
    native.reset_persisting_l2()
    native.spin(_HOLD_US)
    replay()
    for event in events[:-1]:
        event.record()
        replay()
    events[-1].record()
    events[-1].synchronize()
    return [1e3 * start.elapsed_time(end) for start, end in zip(events, events[1:])]


def host_block(replay: Callable[[], None], num_replays: int) -> list[float]:
    """What `gpu_block` measures, by the host's clock and without anything that holds a GPU."""
    replay()
    times = []
    for _ in range(num_replays):
        begin = time.perf_counter()
        replay()
        times.append(1e6 * (time.perf_counter() - begin))
    return times


def time_in_turns(
    arms: list[Timed],
    num_rounds: int,
    num_replays: int = REPLAYS_PER_BLOCK,
    block: Callable[[Callable[[], None], int], list[float]] | None = None,
) -> dict[str, list[float]]:
    """Block medians of every arm in us, one a round; the order turns round from round to round.

    block: runs and times one block; `gpu_block` when None.
    """
    run_block = block or gpu_block
    current = arms[0]

    def select(arm: Timed) -> Callable[[], None]:
        def prepare() -> None:
            nonlocal current
            current = arm
            arm.prepare()

        return prepare

    turns = [Arm(arm.name, select(arm)) for arm in arms]
    return interleave(turns, lambda: run_block(current.replay, num_replays), num_rounds, lambda: None)


def paired(times: list[float], baseline: list[float]) -> list[float]:
    """Ratios round by round, so that slow drift cancels."""
    return [time / base for time, base in zip(times, baseline, strict=True)]


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, median, high


def null_spread(times: dict[str, list[float]]) -> float:
    """How far from 1 chance alone moves a ratio: the farther quartile of null / off."""
    low, _, high = quartiles(paired(times[NULL], times[OFF]))
    return max(abs(low - 1), abs(high - 1))


def median_difference(times: dict[str, list[float]], minuend: str, subtrahend: str) -> float:
    """The median over rounds of one arm's time less another's, in us."""
    return statistics.median(a - b for a, b in zip(times[minuend], times[subtrahend], strict=True))


def row(case: str, arm: Timed, times: dict[str, list[float]], unit: str = "us", **extra: Any) -> dict[str, Any]:
    """One row of the JSON: value is the median in `unit`, low and high are quartiles of ratio_to_off."""
    low, ratio, high = quartiles(paired(times[arm.name], times[OFF]))
    return {
        "case": case,
        "arm": arm.name,
        "value": statistics.median(times[arm.name]),
        "unit": unit,
        "ratio_to_off": ratio,
        "ratio_low": low,
        "ratio_high": high,
        **arm.notes,
        **extra,
    }
