"""A captured graph and the same one without windows: while the engine serves they take turns, then the faster one stays.

So a server is never left with a graph that is slower than it was without us: where prefetching does not pay, the one that
stays has not even empty nodes. An engine asks for it with DSV41_L2_PREFETCH_TUNE=1.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from ..live_tuning import LiveTuning
from .session import Session, is_first_rank


@dataclass
class _Pair:
    """What the engine keeps of either capture, and who decides between them. `in_use` is one of the two."""

    with_windows: Any
    without: Any
    tuning: LiveTuning
    in_use: Any


class GraphPairs:
    """The pairs of one engine in a process, by who holds the graphs and by the key of a graph there."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pairs: weakref.WeakKeyDictionary[Any, dict[Hashable, _Pair]] = weakref.WeakKeyDictionary()

    def capture(self, holder: Any, key: Hashable, capture: Callable[[], Any], put: Callable[[Any], None]) -> None:
        """Captures as planned, and if tuning is asked for and the graph has windows, once more without.

        capture: captures, and returns what the engine keeps of it. put: makes that what the engine keeps.
        """
        if not self._session.config.tune:
            capture()
            return
        self._pairs.get(holder, {}).pop(key, None)
        with self._session.noting_captures() as captured:
            with_windows = capture()
        signature = self._to_tune(captured)
        if signature is None:
            return
        try:
            with self._session.suspended():
                without = capture()
            tuning = LiveTuning(self._session.prefetcher, signature)
        except Exception as error:  # noqa: BLE001  most likely memory: the server goes on with the graph it has
            self._session.logger.warning("dsv41_l2pf: %s is not tuned: %s", _name(signature), error)
        else:
            self._pairs.setdefault(holder, {})[key] = _Pair(with_windows, without, tuning, with_windows)
        put(with_windows)

    def replay(self, holder: Any, key: Hashable, put: Callable[[Any], None], replay: Callable[[], Any]) -> Any:
        """Replays what the engine keeps under `key`, which is the graph whose turn it is."""
        pair = self._pairs.get(holder, {}).get(key)
        if pair is None or self._session.is_paused:
            return replay()
        wanted = pair.with_windows if pair.tuning.begin() else pair.without
        if wanted is not pair.in_use:
            put(wanted)
            pair.in_use = wanted
        result = replay()
        pair.tuning.end()
        if pair.tuning.is_over:
            del self._pairs[holder][key]  # and with it the slower graph
            self._conclude(pair.tuning)
        return result

    def drop(self, holder: Any) -> None:
        """Lets go of the holder's pairs; the graphs in use are its own."""
        self._pairs.pop(holder, None)

    def _to_tune(self, captured: list) -> dict | None:
        """The signature of a graph that is one forward with windows; None for others, and for one tuned at an earlier start."""
        if len(captured) != 1:
            return None
        signature = self._session.signature(captured[0])
        fits = signature is not None and signature["num_launched"] and signature["tuned"] is None
        return signature if fits else None

    def _conclude(self, tuning: LiveTuning) -> None:
        logger, name = self._session.logger, _name(tuning.signature)
        if tuning.outcome is None:
            logger.warning("dsv41_l2pf: %s is not tuned, and runs without windows: %s", name, tuning.problem)
            return
        if is_first_rank():
            logger.info("dsv41_l2pf: tuned %s: %s", name, tuning.outcome.reason)
            self._session.tunings_file.save(self._session.prefetcher)


def _name(signature: dict) -> str:
    return f"tokens={signature['num_tokens']} mode={signature['mode']}"
