"""Which storage belongs to which parameter or buffer of a model, and what the bytes at an address are called."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

DEVICES = ("cpu", "cuda")


def storage_key(tensor: torch.Tensor) -> int:
    """One number per storage, equal for all views of it; 0 for a tensor without strided storage."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0


def leaves(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The plain tensors inside `tensor`, as (suffix, tensor): DTensor locals and the parts of tensor subclasses."""
    if not is_traceable_wrapper_subclass(tensor):
        yield "", tensor
        return
    parts = [(name, getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0]]
    for name, part in parts:
        for suffix, leaf in leaves(part):
            yield (f".{name}{suffix}" if len(parts) > 1 else suffix), leaf


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The first address of a tensor with elements, and the one behind its last byte."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.data_ptr(), tensor.data_ptr() + span * tensor.element_size()


class WeightMap:
    """Finds the weight that a tensor is a view of.

    It keeps the tensors it has seen alive until the next `refresh`, so that a storage's number stays its own.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._build(model)

    def refresh(self, model: torch.nn.Module) -> None:
        """Rebuilds the map if a parameter, buffer or submodule was replaced, added, removed or moved."""
        if not self._is_current():
            self._build(model)

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The qualified name of the weight whose storage `tensor` shares, or None."""
        return self._names.get(storage_key(tensor))

    def name_at(self, address: int) -> str:
        """The qualified name of the weight at `address`; its hexadecimal form when no weight is there."""
        index = bisect_right(self._ranges, (address, float("inf"), ""))
        if index:
            start, end, name = self._ranges[index - 1]
            if start <= address < end:
                return name
        return hex(address)

    def _build(self, model: torch.nn.Module) -> None:
        slots = [
            (mapping, tuple(mapping.items()))
            for module in model.modules()
            for mapping in (module._parameters, module._buffers, module._modules)
        ]
        found = [
            (name + suffix, leaf)
            for named in (model.named_parameters(), model.named_buffers())
            for name, weight in named
            for suffix, leaf in leaves(weight)
            if leaf.device.type in DEVICES and leaf.layout is torch.strided
        ]
        names: dict[int, str] = {}
        for name, leaf in found:
            if leaf.numel():
                names.setdefault(storage_key(leaf), name)
        # Whole, not step by step: another thread may be in a forward of this model.
        self._slots = slots
        self._leaves = [(leaf, leaf.data_ptr()) for _, leaf in found]
        self._names = names
        self._ranges = sorted((*_range(leaf), name) for name, leaf in found if leaf.numel())

    def _is_current(self) -> bool:
        for slots, seen in self._slots:
            if len(slots) != len(seen) or any(slots.get(name) is not value for name, value in seen):
                return False
        return all(leaf.data_ptr() == address for leaf, address in self._leaves)
