"""Which settings of a plan's windows make a step fastest: the search and its decision rule, without a device.

A candidate gives every window a budget and a form. Candidates are measured in turns, and judged by the median over the
rounds of their time / the time of off in the same round, so that drift cancels. Off itself is measured twice: what its
second arm strays from 1 is the noise, and a candidate must win by more than that.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .config import MIB

Setting = tuple[int, str]  # budget in bytes, form
Settings = tuple[Setting, ...]  # one a window

BUDGETS = tuple(mib * MIB for mib in (2, 4, 8, 12, 16, 20, 24, 32, 40))
MIN_NOISE = 0.0005  # what clocks of GPU events resolve of a step
OFF, NULL = "off", "off, again"


@dataclass(frozen=True)
class Candidate:
    """One way to set the windows. uses_baseline: the step to time is the caller's own without windows."""

    name: str
    settings: Settings
    uses_baseline: bool = False


# Runs the candidates in turns for a number of rounds; returns each one's step times in us, round by round.
Measure = Callable[[list[Candidate], int], list[list[float]]]


@dataclass(frozen=True)
class Judgement:
    """One measurement of candidates against off. ratios: by candidate. noise: what off strays from itself."""

    ratios: dict[Candidate, float]
    noise: float
    off_us: float


def judge(measure: Measure, off: Candidate, candidates: list[Candidate], rounds: int) -> Judgement:
    """Measures `candidates` beside `off`, which runs twice."""
    null = Candidate(NULL, off.settings, off.uses_baseline)
    off_us, null_us, *times = measure([off, null, *candidates], rounds)
    null_ratios = [null / off for null, off in zip(null_us, off_us)]
    ratios = {
        candidate: statistics.median(us / off for us, off in zip(candidate_us, off_us))
        for candidate, candidate_us in zip(candidates, times)
    }
    return Judgement(ratios, spread_of(null_ratios), statistics.median(off_us))


def spread_of(null_ratios: list[float]) -> float:
    """How far a median of ratios strays from 1 by chance: its own distance, and half of the quartiles' distance."""
    if len(null_ratios) < 2:
        return max(MIN_NOISE, abs(null_ratios[0] - 1))
    low, middle, high = statistics.quantiles(null_ratios, n=4, method="inclusive")
    return max(MIN_NOISE, abs(middle - 1), (high - low) / 2)


@dataclass
class Outcome:
    """What the search decided. ratio: of `settings` / off in the last, fresh measurement; 1 when it chose off."""

    settings: Settings
    ratio: float
    noise: float
    off_us: float
    reason: str
    measured: dict[str, float] = field(default_factory=dict)


def fastest(found: Judgement, incumbent: Candidate) -> Candidate:
    """The candidate with the lowest ratio; `incumbent` unless another beats it by more than the noise."""
    best = min(found.ratios, key=lambda candidate: found.ratios[candidate])
    return best if found.ratios[best] < found.ratios[incumbent] - found.noise else incumbent


def in_other_forms(best: Candidate, forms: Iterable[str]) -> list[Candidate]:
    """The budgets of `best` in each form."""
    budgets = [budget for budget, _ in best.settings]
    return [Candidate(f"{best.name}, {form}", tuple((budget, form) for budget in budgets)) for form in forms]


def decide(best: Candidate, off: Settings, found: Judgement, measured: dict[str, float]) -> Outcome:
    """The settings of `best` if they beat off by more than the noise, else those of off."""
    ratio, noise = found.ratios[best], found.noise
    said = f"the best settings ({best.name}) took {ratio:.4f} of off, noise {noise:.4f}"
    if ratio < 1 - noise:
        return Outcome(best.settings, ratio, noise, found.off_us, f"on by tune: {said}", measured)
    return Outcome(off, 1.0, noise, found.off_us, f"off by tune: {said}", measured)


class Search:
    """One search over the windows of one plan.

    window_bytes: how much each window could prefetch; largest_window_bytes: of all ranks, which must search alike.
    automatic: the settings that the library chose by itself. forms: those this device has. groups: window indices that
    share a layer position, to be dropped together. baseline: the caller gave a step without windows.
    """

    def __init__(
        self,
        measure: Measure,
        *,
        window_bytes: list[int],
        largest_window_bytes: int,
        automatic: Settings,
        forms: Iterable[str],
        groups: list[list[int]],
        rounds: int,
        baseline: bool = False,
    ) -> None:
        self._measure = measure
        self._window_bytes = window_bytes
        self._largest_window_bytes = largest_window_bytes
        self._automatic = automatic
        self._forms = tuple(forms)
        self._groups = groups
        self._rounds = rounds
        self._off = Candidate(OFF, tuple((0, form) for _, form in automatic))
        self._last_off = Candidate("off, without windows", self._off.settings, True) if baseline else self._off
        self._measured: dict[str, float] = {}

    def run(self) -> Outcome:
        """Searches, then decides by a fresh measurement of the best settings against off."""
        best = self._best(self._budgets("auto"), Candidate("automatic", self._automatic))
        best = self._best(in_other_forms(best, self._forms), best)
        best = self._without_what_slows(best, self._groups)
        return self._decide(best)

    def _with(self, name: str, budget_bytes: int, form: str) -> Candidate:
        return Candidate(name, tuple((min(budget_bytes, size), form) for size in self._window_bytes))

    def _budgets(self, form: str) -> list[Candidate]:
        useful = [budget for budget in BUDGETS if budget < self._largest_window_bytes]
        return [self._with(f"{budget / MIB:g} MiB", budget, form) for budget in useful]

    def _judge(self, off: Candidate, candidates: list[Candidate], rounds: int) -> Judgement:
        judgement = judge(self._measure, off, candidates, rounds)
        self._measured.update({candidate.name: ratio for candidate, ratio in judgement.ratios.items()})
        return judgement

    def _best(self, candidates: list[Candidate], incumbent: Candidate) -> Candidate:
        """The fastest; the incumbent unless another beats it by more than the noise."""
        if not candidates:
            return incumbent
        return fastest(self._judge(self._off, [incumbent, *candidates], self._rounds), incumbent)

    def _without_what_slows(self, best: Candidate, groups: list[list[int]]) -> Candidate:
        """Group testing: halves a set of groups, and drops it as a whole where that helps and no part of it did."""
        if len(groups) > 1:
            middle = len(groups) // 2
            halved = self._without_what_slows(best, groups[:middle])
            halved = self._without_what_slows(halved, groups[middle:])
            if halved is not best:
                return halved
        if not groups or len(groups) == len(self._groups):
            return best  # without any group nothing is left, and off is judged at the end
        dropped = self._drop(best, groups)
        found = self._judge(self._off, [best, dropped], self._rounds)
        return dropped if found.ratios[dropped] < found.ratios[best] - found.noise else best

    def _drop(self, best: Candidate, groups: list[list[int]]) -> Candidate:
        dropped = {index for group in groups for index in group}
        settings = tuple((0, form) if i in dropped else (budget, form) for i, (budget, form) in enumerate(best.settings))
        first = min(dropped)
        return Candidate(f"{best.name}, without windows like {first} ({len(dropped)})", settings)

    def _decide(self, best: Candidate) -> Outcome:
        found = self._judge(self._last_off, [best], 2 * self._rounds)
        return decide(best, self._off.settings, found, self._measured)
