"""A captured graph and the same one without windows: while the engine serves they take turns, then the faster one stays.

So a server is not left with a graph that is slower than it was without us: where prefetching does not pay, the one that
stays has not even empty nodes. An engine asks for it with DSV41_L2_PREFETCH_TUNE=1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..live_tuning import LiveTuning
from .session import Session, SignatureKey, is_first_rank


class Kept(NamedTuple):
    """What an engine keeps of a capture. output: what a replay writes to, None where the engine knows it otherwise."""

    graph: Any
    output: Any = None


Put = Callable[[Kept], None]  # makes it what the engine replays


class GraphPair:
    """Stands where the engine keeps a graph, until it is known which of the two is faster; then that one stands there."""

    def __init__(self, session: Session, signature: dict, with_windows: Kept, without: Kept, put: Put) -> None:
        """signature: of the graph with windows, as in `status`."""
        self._session = session
        self._with_windows = with_windows
        self._without = without
        self._put = put
        self._tuning = LiveTuning(session.prefetcher, signature)
        self._use(with_windows)

    def replay(self) -> None:
        """Replays the graph whose turn it is. While weights change, nothing is measured."""
        if self._session.is_paused:
            self._in_use.graph.replay()
            return
        wanted = self._with_windows if self._tuning.begin() else self._without
        if wanted is not self._in_use:
            self._use(wanted)
        wanted.graph.replay()
        self._tuning.end()
        if self._tuning.is_over:
            self._put(wanted)
            self._conclude()

    def reset(self) -> None:
        """Both graphs let go of what they hold."""
        self._with_windows.graph.reset()
        self._without.graph.reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._in_use.graph, name)

    def _use(self, kept: Kept) -> None:
        self._in_use = kept
        self._put(Kept(self, kept.output))

    def _conclude(self) -> None:
        logger, tuning = self._session.logger, self._tuning
        name = _name(tuning.signature)
        if tuning.outcome is None:
            logger.warning("dsv41_l2pf: %s is not tuned, and runs without windows: %s", name, tuning.problem)
        elif is_first_rank():
            told = tuning.outcome
            logger.info("dsv41_l2pf: tuned tokens=%d mode=%s: %s", told.num_tokens, told.mode, told.reason)
            self._session.tunings_file.save(self._session.prefetcher)


def capture_pair(session: Session, capture: Callable[[], Kept], put: Put) -> None:
    """Captures as planned, and if tuning is asked for and the graph has windows, once more without.

    capture: captures, and returns what the engine keeps of it.
    """
    with session.noting_captures() as captured:
        with_windows = capture()
    signature = to_tune(session, captured)
    if signature is None:
        return
    try:
        with session.suspended():
            without = capture()
        GraphPair(session, signature, with_windows, without, put)
    except Exception as error:  # noqa: BLE001  most likely memory: the server goes on with the graph it has
        put(with_windows)
        say_not_tuned(session, signature, error)


def to_tune(session: Session, captured: list[SignatureKey]) -> dict | None:
    """The signature of a graph that is one forward with windows, if tuning is asked for; None for one tuned already."""
    if not session.config.tune or len(captured) != 1:
        return None
    signature = session.signature(captured[0])
    fits = signature is not None and signature["num_launched"] and signature["tuned"] is None
    return signature if fits else None


def say_not_tuned(session: Session, signature: dict, error: Exception) -> None:
    """Logs that a graph stays as it was planned."""
    session.logger.warning("dsv41_l2pf: %s is not tuned: %s", _name(signature), error)


def _name(signature: dict) -> str:
    return f"tokens={signature['num_tokens']} mode={signature['mode']}"
