"""Times one step of a caller's model: an eager one by the host's clock, or a replayed one by events in its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from .clocks import Clock, EventClock, HostClock
from .recorder import StepRecorder
from .slices import Slice, slices_of

if TYPE_CHECKING:
    from ..prefetcher import Prefetcher

_NUM_REPLAYS = 5  # the last one counts: the first ones load code and warm caches


@contextmanager
def _recording(prefetcher: Prefetcher, clock: Clock) -> Iterator[StepRecorder]:
    recorder, earlier = StepRecorder(clock), prefetcher.windows.observer
    prefetcher.windows.observer = recorder
    try:
        yield recorder
    finally:
        prefetcher.windows.observer = earlier


def trace_eager_step(prefetcher: Prefetcher, step: Callable[[], object]) -> list[Slice]:
    """Runs `step` once, which calls the attached model, and returns its slices.

    On a CPU the operators of a learning forward are timed with what watches them. On a GPU the times are those of the
    stream, with every launch of eager code in them. Raises RuntimeError when the step has no forward that counts.
    """
    on_gpu = torch.cuda.is_initialized()
    with _recording(prefetcher, EventClock() if on_gpu else HostClock()) as recorder:
        step()
    if on_gpu:
        torch.cuda.synchronize()
    return slices_of(prefetcher, recorder)


def trace_graph_step(prefetcher: Prefetcher, step: Callable[[], object]) -> list[Slice]:
    """Captures `step` into a graph of its own with an event at both ends of each collective, replays it, and returns
    the slices of the last replay.

    Call it when the signature is learned: capturing freezes it. The events keep a collective from starting before the
    kernel in front of it ends, so a traced step is somewhat slower. Raises RuntimeError as `trace_eager_step` does.
    """
    graph = torch.cuda.CUDAGraph()
    with _recording(prefetcher, EventClock()) as recorder, torch.cuda.graph(graph):
        step()
    for _ in range(_NUM_REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    return slices_of(prefetcher, recorder)
