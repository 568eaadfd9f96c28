"""NVTX ranges around forwards and windows, in eager code and while a graph is captured, for Nsight Systems."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import torch

from .labels import window_label, window_names

if TYPE_CHECKING:
    from .prefetcher import Prefetcher


def has_nvtx() -> bool:
    """Whether torch was built with NVTX."""
    return torch.backends.cuda.is_built()


class _Forward(threading.local):
    depth = 0  # ranges of this thread that are open
    num_collectives = 0
    names: dict[int, list[str]] = {}


class NvtxRanges:
    """An `Observer`. A forward's range is `l2pf forward decode, 4 tokens`; inside it lies one range a window."""

    def __init__(self, prefetcher: Prefetcher) -> None:
        self._prefetcher = weakref.ref(prefetcher)  # the prefetcher owns us
        self._forward = _Forward()

    def forward_begins(self, model_id: int, num_tokens: int, mode: str) -> None:
        prefetcher = self._prefetcher()
        self._forward.names = {} if prefetcher is None else window_names(prefetcher, model_id, num_tokens, mode)
        self._forward.num_collectives = 0
        self._push(f"l2pf forward {mode}, {num_tokens} tokens")

    def window_opens(self, kind: str) -> None:
        forward = self._forward
        if forward.depth:
            index = forward.num_collectives
            forward.num_collectives += 1
            self._push(window_label(index, forward.names.get(index, [])))

    def window_closes(self) -> None:
        if self._forward.depth > 1:
            self._pop()

    def forward_ends(self) -> None:
        while self._forward.depth:
            self._pop()

    def _push(self, name: str) -> None:
        torch.cuda.nvtx.range_push(name)
        self._forward.depth += 1

    def _pop(self) -> None:
        self._forward.depth -= 1
        torch.cuda.nvtx.range_pop()
