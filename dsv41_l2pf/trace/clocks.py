"""Two clocks to time a step with: the host's, and events of a CUDA stream that also work inside a graph."""

from __future__ import annotations

import time
from typing import Protocol

import torch


class Clock(Protocol):
    def mark(self) -> None:
        """Notes the time here."""

    def times_us(self) -> list[float]:
        """The time of every mark in us, counted from the first."""


class HostClock:
    """For steps whose operators are done when they return: those on a CPU."""

    def __init__(self) -> None:
        self._marks: list[int] = []

    def mark(self) -> None:
        self._marks.append(time.perf_counter_ns())

    def times_us(self) -> list[float]:
        return [(mark - self._marks[0]) / 1e3 for mark in self._marks]


class EventClock:
    """Records an event on the current stream; in a capture it becomes a node that each replay records anew."""

    def __init__(self) -> None:
        self._marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        # external: otherwise a capture would make a dependency of it, without a time.
        event = torch.cuda.Event(enable_timing=True, external=torch.cuda.is_current_stream_capturing())
        event.record()
        self._marks.append(event)

    def times_us(self) -> list[float]:
        """Call it after the stream was synchronised."""
        return [1e3 * self._marks[0].elapsed_time(mark) for mark in self._marks]
