"""Which addresses are still a model's weights after an update."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import torch

from ..weights import DEVICES, leaves


def _storages(tensor: torch.Tensor) -> Iterable[tuple[int, int]]:
    for _suffix, leaf in leaves(tensor):
        if leaf.device.type in DEVICES and leaf.layout is torch.strided:
            storage = leaf.untyped_storage()
            yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()


class LiveTensors:
    """The byte ranges of all tensors that modules hold: parameters, buffers, and prepared copies kept as attributes."""

    def __init__(self, models: Iterable[torch.nn.Module]) -> None:
        ranges = set()
        for model in models:
            for module in model.modules():
                for held in (module._parameters, module._buffers, vars(module)):
                    for value in held.values():
                        for tensor in value if isinstance(value, (list, tuple)) else (value,):
                            if isinstance(tensor, torch.Tensor):
                                ranges.update(_storages(tensor))
        self._ranges = sorted(ranges)

    def contains(self, address: int, num_bytes: int) -> bool:
        """Whether these bytes lie inside one live storage."""
        index = bisect_right(self._ranges, (address, float("inf")))
        return index > 0 and address + num_bytes <= self._ranges[index - 1][1]
