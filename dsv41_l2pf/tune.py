"""`Prefetcher.tune`: measures the caller's own step with other settings of its windows, and keeps the fastest."""

from __future__ import annotations

import logging
import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from .checks import is_whole
from .ranks import Ranks
from .state import read_state
from .stopwatch import Step, stopwatch
from .tune_search import Candidate, Outcome, Search, Settings
from .tuning import Tuning

if TYPE_CHECKING:
    from .prefetcher import Prefetcher

logger = logging.getLogger("dsv41_l2pf")

DEFAULT_ROUNDS = 8
BLOCK_US = 8_000.0  # one turn of one candidate takes about this long
MAX_STEPS_A_BLOCK = 12
MAX_SECONDS = 60.0
_TURNS = 14  # candidates a measurement has, about


class Tuner:
    """One tuning of one signature. A rank without windows goes along: it runs every step that its peers run."""

    def __init__(
        self, prefetcher: Prefetcher, signature: dict, step: Step, baseline: Step | None, ranks: Ranks
    ) -> None:
        self._prefetcher = prefetcher
        self._signature = signature
        self._steps = (step, baseline)
        self._ranks = ranks
        self._now: dict[int, tuple[int, str]] = {}
        self._step_us = stopwatch()
        self._num_steps = 1
        self.problem = ""  # the first error of setting a window; from then on this rank leaves its windows alone

    def run(self, rounds: int, progress: bool) -> Outcome:
        """Searches and leaves the windows set to what it decided."""
        windows = self._signature["windows"]
        groups = self._common_groups()
        rounds = self._choose_block(rounds)
        with _progress(progress) as self._bar:
            outcome = Search(
                self._measure,
                window_bytes=[window["window_bytes"] for window in windows],
                largest_window_bytes=max(self._ranks.all_of(max((w["window_bytes"] for w in windows), default=0))),
                automatic=tuple((window["budget_bytes"], window["form"]) for window in windows),
                forms=self._common_forms(),
                groups=groups,
                rounds=rounds,
                baseline=self._steps[1] is not None,
            ).run()
            self._set(outcome.settings)
        return outcome

    def _common_groups(self) -> list[list[int]]:
        """The groups of every rank that has windows, if those agree; else none: no window is dropped by itself."""
        mine = window_groups(self._prefetcher, self._signature) if self._signature["windows"] else None
        found = [groups for groups in self._ranks.all_of(mine) if groups is not None]
        return found[0] if all(groups == found[0] for groups in found) else []

    def _common_forms(self) -> list[str]:
        """The forms that every rank with windows has."""
        by_rank = self._ranks.all_of(device_forms() if self._signature["windows"] else None)
        return sorted(set.intersection(*(forms for forms in by_rank if forms is not None)))

    def _choose_block(self, rounds: int) -> int:
        """Sets the number of steps of a turn; returns how many rounds fit into the time, the same on every rank."""
        step_us = self._ranks.slowest([[self._step_us(self._steps[0], 3)]])[0][0]
        self._num_steps = max(2, min(MAX_STEPS_A_BLOCK, int(BLOCK_US / max(step_us, 1.0))))
        round_s = _TURNS * (self._num_steps + 1) * step_us / 1e6
        # Four measurements of this size, and the last one twice as long.
        return max(3, min(rounds, int(MAX_SECONDS / (5 * max(round_s, 1e-9)))))

    def _measure(self, candidates: list[Candidate], rounds: int) -> list[list[float]]:
        task = self._bar.add_task("tuning: " + candidates[-1].name, total=rounds) if self._bar else None
        times: list[list[float]] = [[0.0] * rounds for _ in candidates]
        for round_index in range(rounds):
            order = range(len(candidates)) if round_index % 2 == 0 else reversed(range(len(candidates)))
            for i in order:
                self._set(candidates[i].settings)
                step = self._steps[candidates[i].uses_baseline]
                times[i][round_index] = self._step_us(step, self._num_steps)
            if self._bar:
                self._bar.advance(task)
        if self._bar:
            self._bar.remove_task(task)
        return self._ranks.slowest(times)

    def _set(self, settings: Settings) -> None:
        for window, setting in zip(self._signature["windows"], settings):
            index = window["collective_index"]
            if self.problem or self._now.get(index) == setting:
                continue
            try:
                self._set_window(index, setting)
            except RuntimeError as error:
                if self._ranks.are_alone:
                    raise
                # The peers are about to run a step that waits for this rank.
                self.problem = str(error).splitlines()[0]
                logger.error("dsv41_l2pf: tune leaves this rank's windows as they are: %s", self.problem)
            self._now[index] = setting

    def _set_window(self, collective_index: int, setting: tuple[int, str]) -> None:
        key = (self._signature["model"], self._signature["num_tokens"], self._signature["mode"])
        torch.ops.dsv41.set_window(self._prefetcher.handle, *key, collective_index, *setting)


def device_forms() -> set[str]:
    """The forms of the devices that this process uses."""
    wanted = "cuda" if torch.cuda.is_initialized() else "cpu"
    devices = [device for device in read_state()["devices"] if device["device"].startswith(wanted)]
    return {form for device in devices for form in device["forms"]}


def window_groups(prefetcher: Prefetcher, signature: dict) -> list[list[int]]:
    """Indices of the windows that share a layer position: their weights' names differ in numbers only."""
    names: dict[int, list[str]] = {}
    key = (signature["num_tokens"], signature["mode"], signature["model"])
    for index, address, num_bytes in prefetcher.plan_segments(*key):
        name = prefetcher.weight_name(address)
        names.setdefault(index, []).append(str(num_bytes) if name.startswith("0x") else re.sub(r"\d+", "#", name))
    groups: dict[tuple, list[int]] = {}
    for i, window in enumerate(signature["windows"]):
        position = (window["kind"], *names.get(window["collective_index"], []))
        groups.setdefault(position, []).append(i)
    return list(groups.values())


def tune(
    prefetcher: Prefetcher,
    step: Step,
    *,
    num_tokens: int | None,
    mode: str | None,
    rounds: int,
    baseline: Step | None,
    process_group: Any,
    progress: bool,
) -> Tuning:
    """See `Prefetcher.tune`."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("tune: expected a stream that is not being captured, got one that is")
    ranks = Ranks(process_group)
    # An error on one rank alone would leave its peers waiting in the next collective.
    problems = [found for found in ranks.all_of(_problem(prefetcher, step, rounds)) if found]
    if problems:
        raise ValueError(problems[0])
    signature = ranks.one_signature(prefetcher, num_tokens, mode, rounds, baseline is not None)
    tuner = Tuner(prefetcher, signature, step, baseline, ranks)
    outcome = tuner.run(rounds, progress)
    problem = tuner.problem or (signature["reason"] if signature["latched_off"] or not signature["windows"] else "")
    if problem:
        outcome.reason += f"; this rank only went along: {problem}"
    return Tuning.of(signature, outcome)


def _problem(prefetcher: Prefetcher, step: Any, rounds: int) -> str:
    """What is wrong with the arguments of this rank; "" when nothing is."""
    if not is_whole(rounds, 2):
        return f"tune: expected at least 2 rounds, got {rounds!r}"
    if not callable(step):
        return f"tune: expected a step to call, got {step!r}"
    if prefetcher.is_paused:
        return "tune: expected a prefetcher that is not paused, got one that is"
    return ""


def _progress(wanted: bool) -> Any:
    if not wanted:
        return nullcontext()
    from rich.progress import Progress

    return Progress(transient=True)
