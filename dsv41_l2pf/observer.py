"""Who is told of forwards and windows while they run: NVTX names and traces. Off, it costs one comparison a window."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Called by the thread that runs the forward, in this order. Windows outside of a forward are told too."""

    def forward_begins(self, model_id: int, num_tokens: int, mode: str) -> None:
        """A forward that counts has begun; the three are its signature."""

    def window_opens(self, kind: str) -> None:
        """A collective of `kind` is about to be called."""

    def window_closes(self) -> None:
        """The collective is enqueued, and so is its prefetch."""

    def forward_ends(self) -> None:
        """The forward is over, or raised."""
