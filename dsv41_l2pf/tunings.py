"""The tunings of one prefetcher: those it made, and those from a file that wait for their signature to be learned."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from .state import read_state
from .tuning import Tuning

if TYPE_CHECKING:
    from .prefetcher import Prefetcher

logger = logging.getLogger("dsv41_l2pf")

_Key = tuple[int, str]  # number of tokens, mode


class Tunings:
    """By number of tokens and mode: a file knows no model numbers, which are given out anew by each process."""

    def __init__(self) -> None:
        self._made: dict[_Key, Tuning] = {}
        self._misfits: dict[_Key, str] = {}
        self.expected: dict[_Key, Tuning] = {}

    def note(self, tuning: Tuning) -> None:
        """Keeps a tuning that is in force."""
        self._made[tuning.num_tokens, tuning.mode] = tuning
        self.expected.pop((tuning.num_tokens, tuning.mode), None)

    def expect(self, tuning: Tuning) -> None:
        """Keeps a tuning until `apply` meets its signature."""
        self.expected[tuning.num_tokens, tuning.mode] = tuning

    def expect_all(self) -> None:
        """Plans were dropped: every tuning in force waits until its signature is learned again."""
        for tuning in self._made.values():
            self.expect(tuning)
        self._made.clear()

    def all(self) -> list[Tuning]:
        """Those in force, and those still waiting."""
        return [*self._made.values(), *self.expected.values()]

    def apply(self, prefetcher: Prefetcher) -> None:
        """Sets the windows of every learned signature that is waited for. A plan of another shape is left as it is."""
        everything = read_state()["prefetchers"]
        for entry in everything:
            if entry["prefetcher"] != prefetcher.handle:
                continue
            for signature in entry["signatures"]:
                tuning = self.expected.get((signature["num_tokens"], signature["mode"]))
                if tuning is not None and signature["windows"]:
                    self._apply(prefetcher, signature, tuning)

    def described(self, signature: dict) -> dict:
        """A signature of `status` with `tuned`: the ratio and the noise, or None; and the reason if it is off by it."""
        key = (signature["num_tokens"], signature["mode"])
        tuning = self._made.get(key)
        reason = signature["reason"] or self._misfits.get(key, "")
        if tuning is not None and tuning.is_off:
            reason = reason or tuning.reason
        tuned = None if tuning is None else {"ratio": tuning.ratio, "noise": tuning.noise, "reason": tuning.reason}
        return {**signature, "reason": reason, "tuned": tuned}

    def _apply(self, prefetcher: Prefetcher, signature: dict, tuning: Tuning) -> None:
        key = (tuning.num_tokens, tuning.mode)
        del self.expected[key]
        misfit = _misfit(signature, tuning)
        if misfit:
            self._misfits[key] = f"the loaded tuning is of another plan, tune again: {misfit}"
            logger.warning("dsv41_l2pf: %d tokens, mode %s: %s", *key, self._misfits[key])
            return
        for window in tuning.windows:
            torch.ops.dsv41.set_window(
                prefetcher.handle,
                signature["model"],
                *key,
                window.collective_index,
                window.budget_bytes,
                window.form,
            )
        self._made[key] = tuning


def _misfit(signature: dict, tuning: Tuning) -> str:
    if signature["num_collectives"] != tuning.num_collectives:
        return f"expected {tuning.num_collectives} collectives, got {signature['num_collectives']}"
    expected = [(window.collective_index, window.kind, window.window_bytes) for window in tuning.windows]
    got = [(window["collective_index"], window["kind"], window["window_bytes"]) for window in signature["windows"]]
    differing = next((pair for pair in zip(expected, got) if pair[0] != pair[1]), None)
    if differing:
        return f"expected window {differing[0]}, got {differing[1]}"
    return "" if len(expected) == len(got) else f"expected {len(expected)} windows, got {len(got)}"
