"""Step times of several ways to run the same step, measured in turns so that drift hits all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass


SHOWN_WINDOWS = 2  # of the plan, so that plan and result fit on one screen


@dataclass(frozen=True)
class Arm:
    """One way to run the step. prepare: called before each of its blocks."""

    name: str
    prepare: Callable[[], None]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of block medians, in ms."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} .. {self.high:.2f})"


def spread(block_ms: list[float]) -> Spread:
    """The spread of at least two block medians in ms."""
    return Spread(*statistics.quantiles(block_ms, n=4, method="inclusive"))


def interleave(
    arms: list[Arm], block: Callable[[], list[float]], num_rounds: int, advance: Callable[[], None]
) -> dict[str, list[float]]:
    """Runs one block of every arm a round, in alternating order, and returns each arm's block medians.

    block: runs a few steps and returns the time of each, in any one unit. advance: called after each block.
    """
    medians: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for round_index in range(num_rounds):
        for arm in arms if round_index % 2 == 0 else reversed(arms):
            arm.prepare()
            medians[arm.name].append(statistics.median(block()))
            advance()
    return medians
