"""`Prefetcher.tune`: measures the caller's own step with other settings of its windows, and keeps the fastest."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from .checks import is_whole
from .stopwatch import Step, stopwatch
from .tune_search import Candidate, Outcome, Search, Settings
from .tuning import Tuning, WindowSetting

if TYPE_CHECKING:
    from .prefetcher import Prefetcher

DEFAULT_ROUNDS = 8
BLOCK_US = 8_000.0  # one turn of one candidate takes about this long
MAX_STEPS_A_BLOCK = 12
MAX_SECONDS = 60.0
_TURNS = 14  # candidates a measurement has, about


class Ranks:
    """Ranks that tune together: they take every decision alike, by the slowest rank's times."""

    def __init__(self, process_group: Any) -> None:
        """process_group: None when this process tunes alone."""
        self._group = process_group
        if process_group is not None:
            on_gpu = torch.distributed.get_backend(process_group) == "nccl"
            self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def slowest(self, times: list[list[float]]) -> list[list[float]]:
        """The largest of every time over all ranks."""
        if self._group is None:
            return times
        slowest = torch.tensor(times, dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(slowest, torch.distributed.ReduceOp.MAX, group=self._group)
        return slowest.tolist()

    def all_of(self, mine: Any) -> list[Any]:
        """`mine` of every rank, in the order of ranks."""
        if self._group is None:
            return [mine]
        found = [None] * torch.distributed.get_world_size(self._group)
        torch.distributed.all_gather_object(found, mine, group=self._group)
        return found


class Tuner:
    """One tuning of one signature."""

    def __init__(self, prefetcher: Prefetcher, signature: dict, step: Step, baseline: Step | None, ranks: Ranks) -> None:
        self._prefetcher = prefetcher
        self._signature = signature
        self._steps = (step, baseline)
        self._ranks = ranks
        self._now: dict[int, tuple[int, str]] = {}
        self._step_us = stopwatch()
        self._num_steps = 1

    def run(self, rounds: int, progress: bool) -> Outcome:
        """Searches and leaves the windows set to what it decided."""
        windows = self._signature["windows"]
        automatic = tuple((window["budget_bytes"], window["form"]) for window in windows)
        groups = window_groups(self._prefetcher, self._signature)
        plans = self._ranks.all_of(groups)
        rounds = self._choose_block(rounds)
        with _progress(progress) as self._bar:
            outcome = Search(
                self._measure,
                window_bytes=[window["window_bytes"] for window in windows],
                automatic=automatic,
                forms=self._forms(),
                groups=groups,
                rounds=rounds,
                same_on_all_ranks=all(plan == groups for plan in plans),
                baseline=self._steps[1] is not None,
            ).run()
            self._set(outcome.settings)
        return outcome

    def _forms(self) -> list[str]:
        devices = json.loads(torch.ops.dsv41.status())["devices"]
        wanted = "cuda" if torch.cuda.is_initialized() else "cpu"
        forms = {form for device in devices if device["device"].startswith(wanted) for form in device["forms"]}
        return sorted(set.intersection(*map(set, self._ranks.all_of(forms)))) if forms else []

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
            if self._now.get(index) == setting:
                continue
            torch.ops.dsv41.set_window(
                self._prefetcher.handle,
                self._signature["model"],
                self._signature["num_tokens"],
                self._signature["mode"],
                index,
                *setting,
            )
            self._now[index] = setting


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
    ranks = Ranks(process_group)
    signature, problem = _find(prefetcher, step, num_tokens, mode, rounds)
    # An error on one rank alone would leave its peers waiting in the next collective.
    problems = [found for found in ranks.all_of(problem) if found]
    if problems:
        raise ValueError(problems[0])
    outcome = Tuner(prefetcher, signature, step, baseline, ranks).run(rounds, progress)
    return Tuning(
        num_tokens=signature["num_tokens"],
        mode=signature["mode"],
        num_collectives=signature["num_collectives"],
        windows=[
            WindowSetting(window["collective_index"], window["kind"], window["window_bytes"], *setting)
            for window, setting in zip(signature["windows"], outcome.settings)
        ],
        ratio=outcome.ratio,
        noise=outcome.noise,
        step_us=outcome.off_us,
        reason=outcome.reason,
        measured=outcome.measured,
    )


def _find(
    prefetcher: Prefetcher, step: Any, num_tokens: int | None, mode: str | None, rounds: int
) -> tuple[dict, str]:
    """The one signature to tune, or why there is none."""
    if not is_whole(rounds, 2):
        return {}, f"tune: expected at least 2 rounds, got {rounds!r}"
    if not callable(step):
        return {}, f"tune: expected a step to call, got {step!r}"
    if prefetcher.is_paused:
        return {}, "tune: expected a prefetcher that is not paused, got one that is"
    planned = [entry for entry in prefetcher.status()["signatures"] if entry["windows"]]
    fitting = [
        entry
        for entry in planned
        if num_tokens in (None, entry["num_tokens"]) and mode in (None, entry["mode"])
    ]
    if len(fitting) == 1:
        return fitting[0], ""
    seen = ", ".join(f"{entry['num_tokens']} tokens in mode {entry['mode']}" for entry in planned) or "none"
    asked = f"num_tokens={num_tokens}, mode={mode!r}"
    return {}, f"tune: expected one signature with windows, got {len(fitting)} for {asked}; those learned: {seen}"


def _progress(wanted: bool) -> Any:
    if not wanted:
        return nullcontext()
    from rich.progress import Progress

    return Progress(transient=True)
