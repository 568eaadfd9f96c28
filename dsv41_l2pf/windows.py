"""Opens and closes windows around other people's collectives without ever raising in front of one."""

from __future__ import annotations

import logging
from typing import Any

import torch

from .observer import Observer
from .weights import DEVICES

logger = logging.getLogger("dsv41_l2pf")


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first strided CPU or CUDA tensor in a tensor or a nested list of tensors, or None."""
    if isinstance(value, torch.Tensor):
        usable = value.device.type in DEVICES and value.layout is torch.strided
        return value if usable else None
    if isinstance(value, (list, tuple)):
        return next((tensor for item in value if (tensor := first_tensor(item)) is not None), None)
    return None


class Windows:
    """The windows of one holder. The first error latches it off: raising on one rank would hang its peers."""

    def __init__(self) -> None:
        self.error = ""
        self.observer: Observer | None = None

    def open(self, input: Any, kind: str) -> bool:
        """Numbers a collective; returns whether `close` is due. `input`: a tensor or a nested list of tensors."""
        anchor = first_tensor(input)
        if anchor is None:
            return False
        if self.observer is not None:
            self.tell("window_opens", kind)
        return self._call(torch.ops.dsv41.collective_begin, anchor, kind)

    def close(self, output: Any) -> None:
        """Closes the window that the last `open` opened. `output`: a tensor or a nested list of tensors."""
        anchor = first_tensor(output)
        if anchor is not None:
            self._call(torch.ops.dsv41.collective_end, anchor)
            # After: what an observer puts on the stream must not come between a collective and its prefetch node.
            if self.observer is not None:
                self.tell("window_closes")

    def record(self, weights: list[torch.Tensor]) -> None:
        """Notes that `weights` are about to be read, in this order."""
        self._call(torch.ops.dsv41.record_weight, weights)

    def record_unplanned(self, num_bytes: int) -> None:
        """Notes that `num_bytes` were read that no window can plan."""
        self._call(torch.ops.dsv41.record_unplanned, num_bytes)

    def tell(self, event: str, *args: Any) -> None:
        """Calls a method of the observer, if there is one. An observer that raises is dropped."""
        if self.observer is None:
            return
        try:
            getattr(self.observer, event)(*args)
        except Exception as error:  # noqa: BLE001  raising on one rank would hang its peers
            self.observer = None
            logger.error("dsv41_l2pf: names and times of windows are off: %s failed: %s", event, error)

    def _call(self, op: Any, *args: Any) -> bool:
        if self.error:
            return False
        try:
            op(*args)
        except Exception as error:  # noqa: BLE001  by torch's version a bad argument is a ValueError or a RuntimeError
            self.error = str(error).splitlines()[0]
            logger.error("dsv41_l2pf: prefetching is off: %s failed: %s", op, self.error)
            return False
        return True
