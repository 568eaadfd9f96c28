"""Whether the eager forwards of a model are worth watching: the replay of a graph costs nothing, they do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

NUM_LEARNING = 8  # forwards that are watched in any case: those that learn, and those that warm up
NUM_TURNS = 8  # forwards of each kind that are timed
NUM_UNSEEN = 16  # unwatched forwards between two looks at every weight, not at some


class Watching:
    """The eager forwards of one number of tokens.

    To learn from a forward and to open windows in it, each of its operators is looked at, which takes host time. After
    `NUM_LEARNING` forwards some are watched and some are not, in turns. What is timed is from one forward to the next,
    all that the caller's step takes. If it is not shorter with us, forwards are watched no more.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._restart()

    def begins(self, weights_changed: Callable[[bool], bool]) -> bool:
        """A forward begins; returns whether it is watched.

        weights_changed(all): asked before unwatched ones, most often about some weights only; then all begins anew.
        """
        now = self._clock()
        if self._begun_s is not None and self.ratio is None:
            self._periods_s[self._was_watched].append(now - self._begun_s)
        if self.ratio is None and min(map(len, self._periods_s.values())) >= NUM_TURNS:
            self.ratio = self._median_s(True) / max(self._median_s(False), 1e-9)
        if self.is_over and weights_changed(self._num_forwards % NUM_UNSEEN == 0):
            self._restart()
        turn = self._num_forwards - NUM_LEARNING
        self._num_forwards += 1
        if self.ratio is not None:
            return self.ratio < 1
        # W U U W: a drift meets both alike.
        self._was_watched = turn < 0 or turn % 4 in (0, 3)
        self._begun_s = now if turn >= 0 else None
        return self._was_watched

    @property
    def is_over(self) -> bool:
        """Whether forwards are watched no more."""
        return self.ratio is not None and self.ratio >= 1

    def _median_s(self, watched: bool) -> float:
        return statistics.median(self._periods_s[watched])

    def _restart(self) -> None:
        self.ratio: float | None = None  # watched / unwatched, once it is known
        self._num_forwards = 0
        self._begun_s: float | None = None
        self._was_watched = True
        self._periods_s: dict[bool, list[float]] = {True: [], False: []}
