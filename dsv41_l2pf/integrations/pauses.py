"""Keeping prefetches away from weights that are being rewritten, replaced or unmapped."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..prefetcher import Prefetcher
from .liveness import LiveTensors


def cuda_in_use() -> bool:
    """Whether CUDA is initialised; asking for a stream would initialise it."""
    return torch.cuda.is_available() and torch.cuda.is_initialized()


class Pauses:
    """The part of a session that switches windows off around weight updates, and decides what comes back."""

    logger: logging.Logger

    def __init__(self) -> None:
        self.off = ""  # why nothing is done any more
        self._prefetcher: Prefetcher | None = None
        self._models: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._announced: dict[tuple, str] = {}
        self._paused = 0

    @property
    def is_paused(self) -> bool:
        """Whether weights are changing."""
        return self._paused > 0

    @contextmanager
    def update(self) -> Iterator[None]:
        """Around anything that rewrites or replaces weights."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def pause(self) -> None:
        """Switches every window off, in live graphs too, and waits until no prefetch is running. Pauses nest."""
        self._paused += 1
        if self._paused > 1 or self._prefetcher is None:
            return
        try:
            self._prefetcher.pause()
        except Exception as error:  # noqa: BLE001  an update must go on, whatever becomes of prefetching
            self.switch_off(f"it could not be paused for a weight update: {error}")

    def resume(self) -> None:
        """Ends a pause: the windows come back if their weights are where they were, else everything is learned anew."""
        self._paused = max(self._paused - 1, 0)
        if self._paused or self._prefetcher is None or not self._prefetcher.is_paused:
            return
        try:
            moved = self._weights_moved()
            if moved:
                self._prefetcher.invalidate()
            self._prefetcher.resume()
            if moved:
                self._announced.clear()
                self.logger.warning(
                    "dsv41_l2pf: weights were replaced: plans dropped, eager forwards learn again; graphs captured "
                    "before run without prefetch"
                )
        except Exception as error:  # noqa: BLE001
            self.switch_off(f"it could not be resumed after a weight update: {error}")

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Inside an update, around something that must see the windows again: a new capture."""
        paused = self._paused
        if paused:
            self._paused = 1
            self.resume()
        try:
            yield
        finally:
            if paused:
                self.pause()
                self._paused = paused

    def switch_off(self, reason: str) -> None:
        """Ends all prefetching of this session, and says why."""
        self.off = reason
        self.logger.error("dsv41_l2pf: prefetching is off: %s", reason)

    def _weights_moved(self) -> bool:
        assert self._prefetcher is not None
        live = LiveTensors(self._models)
        for signature in self._prefetcher.status()["signatures"]:
            key = (signature["num_tokens"], signature["mode"], signature["model"])
            for _index, address, num_bytes in self._prefetcher.plan_segments(*key):
                if not live.contains(address, num_bytes):
                    return True
        return False
