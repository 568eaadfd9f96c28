"""Opens and closes windows around other people's collectives without ever raising in front of one."""

from __future__ import annotations

import logging
from typing import Any

import torch

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

    def open(self, input: Any, kind: str) -> bool:
        """Numbers a collective; returns whether `close` is due. `input`: a tensor or a nested list of tensors."""
        anchor = first_tensor(input)
        return anchor is not None and self._call(torch.ops.dsv41.collective_begin, anchor, kind)

    def close(self, output: Any) -> None:
        """Closes the window that the last `open` opened. `output`: a tensor or a nested list of tensors."""
        anchor = first_tensor(output)
        if anchor is not None:
            self._call(torch.ops.dsv41.collective_end, anchor)

    def record(self, weights: list[torch.Tensor]) -> None:
        """Notes that `weights` are about to be read, in this order."""
        self._call(torch.ops.dsv41.record_weight, weights)

    def record_unplanned(self, num_bytes: int) -> None:
        """Notes that `num_bytes` were read that no window can plan."""
        self._call(torch.ops.dsv41.record_unplanned, num_bytes)

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
