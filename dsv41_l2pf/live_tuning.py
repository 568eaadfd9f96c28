"""Tunes a captured graph by the steps that a server runs anyway: with windows and without them, in turns.

Unlike `Prefetcher.tune` it runs no step of its own: it needs no inputs that a replay may read and write, and it meets the
peers as they really come. Ranks need not talk: they replay in step, so their turns fall together, and what one of them
chooses changes no collective.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import torch

from .tune import device_forms
from .tune_search import Candidate, Outcome, Settings, decide, fastest, in_other_forms, judge
from .tuning import Tuning

if TYPE_CHECKING:
    from .prefetcher import Prefetcher

NUM_ROUNDS = 10
STEPS_A_TURN = 4  # that are timed, after one that is not: it follows a change
STEPS_BEHIND = 8  # that the host may be ahead of the device; then times are read, on all ranks at the same step
AUTOMATIC = "automatic"
SHARES = {AUTOMATIC: 1.0, "half of the automatic budget": 0.5, "a quarter of the automatic budget": 0.25}
_WHOLE_BYTES = 1 << 12  # parts of a budget are cut to a multiple of it


class Span(Protocol):
    """One step on its way through the device; it begins when it is made."""

    def end(self) -> None:
        """Notes the step's end."""

    def us(self) -> float:
        """How long the step took; waits until it is over."""


class EventSpan:
    """By two events on the current stream."""

    def __init__(self) -> None:
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._begin.record()

    def end(self) -> None:
        self._end.record()

    def us(self) -> float:
        self._end.synchronize()
        return 1e3 * self._begin.elapsed_time(self._end)


def off_of(windows: list[dict]) -> Candidate:
    """The graph without windows. windows: as in `status`."""
    return Candidate("off, without windows", tuple((0, window["form"]) for window in windows), uses_baseline=True)


def parts_of(windows: list[dict]) -> list[Candidate]:
    """The budgets that are tried: the automatic ones, and parts of them."""
    return [
        Candidate(name, tuple((_part(window["budget_bytes"], share), window["form"]) for window in windows))
        for name, share in SHARES.items()
    ]


def _part(num_bytes: int, share: float) -> int:
    return num_bytes if share == 1 else int(num_bytes * share) // _WHOLE_BYTES * _WHOLE_BYTES


class Measurement:
    """Candidates that have their turns, some steps each, round by round; every other round in the other order."""

    def __init__(self, arms: list[Candidate], rounds: int) -> None:
        self._arms = arms
        self._spans: list[list[list[Span]]] = [[[] for _ in range(rounds)] for _ in arms]
        self.steps = self._all_steps(rounds)

    def _all_steps(self, rounds: int) -> Iterator[tuple[Candidate, list[Span] | None]]:
        """For each step its candidate, and where its span goes; None: it is not timed."""
        for round_index in range(rounds):
            order = range(len(self._arms))
            for i in order if round_index % 2 == 0 else reversed(order):
                yield self._arms[i], None
                for _ in range(STEPS_A_TURN):
                    yield self._arms[i], self._spans[i][round_index]
        for _ in range(STEPS_BEHIND):
            yield self._arms[i], None

    def times_us(self) -> list[list[float]]:
        """By candidate and round."""
        return [[statistics.median(span.us() for span in spans) for spans in rounds] for rounds in self._spans]


class LiveTuning:
    """Of one signature, which was captured twice: with windows and without.

    Before each step `begin` says in which of the two graphs it is to run; after it comes `end`. First budgets have their
    turns, then the forms of the best budget, then the best of those once more against off. Then `outcome` is set, and
    the windows to what it says. If that is off, or `problem` says why it was given up, the graph without windows runs.
    """

    def __init__(
        self, prefetcher: Prefetcher, signature: dict, *, rounds: int = NUM_ROUNDS, span: type[Span] = EventSpan
    ) -> None:
        """signature: as in `status`, with windows."""
        self.outcome: Tuning | None = None
        self.problem = ""
        self._prefetcher = prefetcher
        self.signature = signature
        self._rounds = rounds
        self._span = span
        self._off = off_of(signature["windows"])
        self._forms = device_forms()  # still to be tried
        self._measured: dict[str, float] = {}
        self._measure(parts_of(signature["windows"]))
        self._now: Candidate | None = None  # whose turn it is
        self._running: Span | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has come to an end, one or the other."""
        return self.outcome is not None or bool(self.problem)

    def begin(self) -> bool:
        """A step is about to run. Returns whether in the graph with windows."""
        if not self.is_over:
            try:
                self._advance()
            except Exception as error:  # noqa: BLE001  the server goes on, without windows
                self.problem = (str(error) or type(error).__name__).splitlines()[0]
        if self.outcome is not None:
            return not self.outcome.is_off
        return not self.problem and self._now is not None and not self._now.uses_baseline

    def end(self) -> None:
        """The step was enqueued."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def _measure(self, tried: list[Candidate]) -> None:
        """Beside off, which runs twice: what it strays from itself is the noise."""
        self._tried = tried
        self._measurement = Measurement([self._off, self._off, *tried], self._rounds)

    def _advance(self) -> None:
        step = next(self._measurement.steps, None)
        if step is None:
            self._judge()
            return
        candidate, spans = step
        if candidate is not self._now:
            self._now = candidate
            if not candidate.uses_baseline:  # that graph has no windows to set
                self._set(candidate.settings)
        if spans is not None:
            self._running = self._span()
            spans.append(self._running)

    def _judge(self) -> None:
        """What comes after a measurement: the forms, the last word, or the end."""
        times_us = self._measurement.times_us()
        found = judge(lambda candidates, rounds: times_us, self._off, self._tried, self._rounds)
        self._measured.update({candidate.name: ratio for candidate, ratio in found.ratios.items()})
        best = fastest(found, self._tried[0])
        if self._forms:
            self._measure([best, *in_other_forms(best, sorted(self._forms))])
            self._forms = set()
        elif len(self._tried) > 1:
            self._measure([best])
        else:
            self._conclude(decide(best, self._off.settings, found, self._measured))

    def _conclude(self, outcome: Outcome) -> None:
        self._set(outcome.settings)
        self.outcome = Tuning.of(self.signature, outcome)
        self._prefetcher.tunings.note(self.outcome)

    def _set(self, settings: Settings) -> None:
        key = (self.signature["model"], self.signature["num_tokens"], self.signature["mode"])
        for window, setting in zip(self.signature["windows"], settings):
            torch.ops.dsv41.set_window(self._prefetcher.handle, *key, window["collective_index"], *setting)
