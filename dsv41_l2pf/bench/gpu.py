"""A minute with a captured decode step: off, windows off, on and tuned, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .. import attach
from ..config import Config
from ..demo.arms import Arm, interleave
from ..demo.gpu_model import CACHE_TOKENS, NUM_SEQUENCES, PROMPT_TOKENS, CapturedStep, Decoder, llama_config, make_model
from ..prefetcher import Prefetcher

OFF, AGAIN, EMPTY, ON, TUNED = "off", "off, again", "windows off", "on", "tuned"
MODE = "decode"
_LIMIT_S = 60.0
_NUM_LAYERS = 8
_STEPS_A_BLOCK = 24
_WARM_STEPS = 3  # of every block, untimed
_MIN_ROUNDS, _MAX_ROUNDS = 6, 25
_TUNE_ROUNDS = 4

Settings = dict[int, tuple[int, str]]  # collective index -> budget in bytes, form


@dataclass
class Measured:
    """windows: the plan's, as in `status`. arms: block medians of the step time in us. reason: of the tuning."""

    windows: list[dict]
    arms: dict[str, list[float]]
    tokens_equal: bool
    reason: str

    def ratios(self) -> dict[str, float]:
        """Step time of an arm / off, the median over rounds, so that slow drift cancels."""
        off = self.arms[OFF]
        return {name: statistics.median([a / b for a, b in zip(times, off)]) for name, times in self.arms.items()}


def measure(num_layers: int, stage: Callable[[str, float], None]) -> Measured:
    """Runs the whole measurement. stage(what, share): called as it goes on, share from 0 to 1.

    Raises RuntimeError when nothing was planned.
    """
    begin_s = time.monotonic()
    with torch.inference_mode():
        stage("making the model on the GPU", 0.0)
        decoder = Decoder(make_model(llama_config(min(num_layers, _NUM_LAYERS)), "cuda"), NUM_SEQUENCES)
        decoder.decode(2, decoder.step)  # libraries make their handles and workspaces outside the capture
        off = CapturedStep(decoder)
        tokens_off, _ = decoder.decode(_STEPS_A_BLOCK, off)
        stage("learning and capturing", 0.15)
        prefetcher = attach(decoder.model, Config(), mode=MODE)
        decoder.decode(2, decoder.step)
        on = CapturedStep(decoder)
        tokens_on, _ = decoder.decode(_STEPS_A_BLOCK, on)
        windows = _windows(prefetcher)
        automatic = {window["collective_index"]: (-1, window["form"]) for window in windows}
        stage("tuning", 0.25)
        tuning = prefetcher.tune(
            _endless(decoder, on), num_tokens=NUM_SEQUENCES, mode=MODE, rounds=_TUNE_ROUNDS, progress=False
        )
        tuned = {window.collective_index: (window.budget_bytes, window.form) for window in tuning.windows}
        turns = _Turns(decoder, prefetcher, off, on)
        empty = {index: (0, form) for index, (_, form) in automatic.items()}
        arms = [Arm(name, lambda s=settings: turns.use(s)) for name, settings in
                ((OFF, None), (AGAIN, None), (EMPTY, empty), (ON, automatic), (TUNED, tuned))]  # fmt: skip
        num_rounds = turns.num_rounds(len(arms), _LIMIT_S - (time.monotonic() - begin_s))
        num_done = 0

        def advance() -> None:
            nonlocal num_done
            num_done += 1
            stage("timing, in turns", 0.5 + 0.5 * num_done / (len(arms) * num_rounds))

        times = interleave(arms, turns.block, num_rounds, advance)
        prefetcher.detach()
    return Measured(windows, times, tokens_on == tokens_off, tuning.reason)


def _windows(prefetcher: Prefetcher) -> list[dict]:
    status = prefetcher.status()
    for signature in status["signatures"]:
        if (signature["num_tokens"], signature["mode"]) == (NUM_SEQUENCES, MODE) and signature["windows"]:
            return signature["windows"]
    raise RuntimeError(f"expected learned windows, got none: {status['reason'] or 'no decode step was seen'}")


def _endless(decoder: Decoder, step: CapturedStep) -> Callable[[], None]:
    """`step` as often as one likes: it goes back to the prompt's end before the cache is full."""
    num_left = 0

    def run() -> None:
        nonlocal num_left
        if num_left == 0:
            decoder.rewind()
            num_left = CACHE_TOKENS - PROMPT_TOKENS
        num_left -= 1
        step()

    return run


class _Turns:
    """One block of steps of the arm that is in turn."""

    def __init__(self, decoder: Decoder, prefetcher: Prefetcher, off: CapturedStep, on: CapturedStep) -> None:
        self._decoder, self._prefetcher = decoder, prefetcher
        self._off, self._on, self._current = off, on, off

    def use(self, settings: Settings | None) -> None:
        """settings: of the windows; None is the graph that was captured without us."""
        self._current = self._off if settings is None else self._on
        for index, (budget_bytes, form) in (settings or {}).items():
            self._prefetcher.set_window(
                index, num_tokens=NUM_SEQUENCES, mode=MODE, budget_bytes=budget_bytes, form=form
            )

    def block(self) -> list[float]:
        """The time of each step in us."""
        self._decoder.rewind()
        for _ in range(_WARM_STEPS):
            self._current()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(_STEPS_A_BLOCK + 1)]
        events[0].record()
        for event in events[1:]:
            self._current()
            event.record()
        events[-1].synchronize()
        return [1e3 * begin.elapsed_time(end) for begin, end in zip(events, events[1:])]

    def num_rounds(self, num_arms: int, left_s: float) -> int:
        """As many rounds as fit into the time that is left."""
        begin_s = time.monotonic()
        self.block()
        round_s = num_arms * (time.monotonic() - begin_s)
        return max(_MIN_ROUNDS, min(_MAX_ROUNDS, int(left_s / round_s)))
