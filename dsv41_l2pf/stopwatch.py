"""Times a step that somebody else's code runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

Step = Callable[[], object]


def stopwatch() -> Callable[[Step, int], float]:
    """`cuda_step_us` where this process uses a GPU, else `host_step_us`."""
    return cuda_step_us if torch.cuda.is_initialized() else host_step_us


def cuda_step_us(step: Step, num_steps: int) -> float:
    """The median time of `num_steps` runs of `step` on the current stream in us, after one that is not timed."""
    step()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(num_steps + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    events[-1].synchronize()
    return statistics.median(1e3 * begin.elapsed_time(end) for begin, end in zip(events, events[1:]))


def host_step_us(step: Step, num_steps: int) -> float:
    """The same by the host's clock."""
    step()
    marks = [time.perf_counter()]
    for _ in range(num_steps):
        step()
        marks.append(time.perf_counter())
    return statistics.median(1e6 * (end - begin) for begin, end in zip(marks, marks[1:]))
