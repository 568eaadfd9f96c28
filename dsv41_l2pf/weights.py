"""Which storage belongs to which parameter or buffer of a model, and what the bytes at an address are called."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .fsdp import transient_parameters

DEVICES = ("cpu", "cuda")
_NUM_SOME = 8  # weights that are looked at before every forward


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


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer, or a plain tensor inside one. name: its qualified name."""

    name: str
    shape: torch.Size
    num_bytes: int


class WeightMap:
    """Finds the weight that a tensor is a view of.

    It keeps the tensors it has seen alive until the next `refresh`, so that a storage's number stays its own.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._build(model)

    def refresh(self, model: torch.nn.Module) -> None:
        """Rebuilds the map if a parameter, buffer or submodule was replaced, added, removed or moved."""
        if not self.is_current():
            self._build(model)

    def is_current(self) -> bool:
        """Whether every parameter, buffer and submodule is the one that was seen, and where it was."""
        for slots, seen in self._slots:
            if len(slots) != len(seen) or any(slots.get(name) is not value for name, value in seen):
                return False
        # Both: a new storage may lie where the old one was, and a view elsewhere in the same one.
        return all(leaf.data_ptr() == address and storage_key(leaf) == key for leaf, address, key in self._leaves)

    def looks_current(self) -> bool:
        """The same of a few weights, in no time: notices when all were replaced."""
        return all(leaf.data_ptr() == address and storage_key(leaf) == key for leaf, address, key in self._some)

    @property
    def on_gpu(self) -> bool:
        """Whether a weight is on a GPU."""
        return self._on_gpu

    def may_be_among(self, args: tuple, kwargs: dict) -> bool:
        """Whether a weight may be among the arguments of an operator: fast, and right when it says no."""
        weights = self._weights
        try:
            for value in args:
                if isinstance(value, torch.Tensor):
                    if value.untyped_storage()._cdata in weights:
                        return True
                elif isinstance(value, list) and not (value and isinstance(value[0], int)):
                    return True
        except (RuntimeError, NotImplementedError):  # a tensor without a storage
            return True
        return bool(kwargs)

    def find(self, tensor: torch.Tensor) -> Weight | None:
        """The weight that `tensor` is a view of, or None. Of several in one storage, the one where it starts."""
        weight = self._weights.get(storage_key(tensor))
        return weight and (self._at(tensor.data_ptr()) or weight)

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The qualified name of the weight that `tensor` is a view of, or None."""
        weight = self.find(tensor)
        return weight and weight.name

    def name_at(self, address: int) -> str:
        """The qualified name of the weight at `address`; its hexadecimal form when no weight is there."""
        weight = self._at(address)
        return hex(address) if weight is None else weight.name

    def weights(self) -> list[Weight]:
        """Every weight, parameters before buffers, in the model's order."""
        return self._all

    def _at(self, address: int) -> Weight | None:
        index = bisect_right(self._ranges, address, key=itemgetter(0))
        if index:
            start, end, weight = self._ranges[index - 1]
            if start <= address < end:
                return weight
        return None

    def _build(self, model: torch.nn.Module) -> None:
        slots = [
            (mapping, tuple(mapping.items()))
            for module in model.modules()
            for mapping in (module._parameters, module._buffers, module._modules)
        ]
        transient = transient_parameters(model)
        found = [
            (Weight(name + suffix, leaf.shape, leaf.numel() * leaf.element_size()), leaf)
            for named in (model.named_parameters(), model.named_buffers())
            for name, weight in named
            if id(weight) not in transient
            for suffix, leaf in leaves(weight)
            if leaf.device.type in DEVICES and leaf.layout is torch.strided
        ]
        weights: dict[int, Weight] = {}
        ranges: dict[int, tuple[int, int, Weight]] = {}
        for weight, leaf in found:
            if leaf.numel():
                start, end = _range(leaf)
                weights.setdefault(storage_key(leaf), weight)
                ranges.setdefault(start, (start, end, weight))
        # Whole, not step by step: another thread may be in a forward of this model.
        self._slots = slots
        self._leaves = [(leaf, leaf.data_ptr(), storage_key(leaf)) for _, leaf in found]
        self._some = self._leaves[:: max(1, len(self._leaves) // _NUM_SOME)]
        self._all = [weight for weight, _ in found]
        self._on_gpu = any(leaf.is_cuda for _, leaf in found)
        self._weights = weights
        self._ranges = sorted(ranges.values(), key=itemgetter(0))
