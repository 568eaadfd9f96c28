"""How ranks sum a tensor: NCCL, gloo, and the one-shot and two-shot all-reduces of `torch.ops.symm_mem`."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.distributed as dist


class Transport(ABC):
    """One all-reduce of all ranks. kernel: a part of its kernel's name, as a captured graph shows it."""

    kernel = ""

    @abstractmethod
    def all_reduce(self, data: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks of `data`, a contiguous tensor, which it may overwrite."""


class ProcessGroup(Transport):
    """`dist.all_reduce` of the default group: NCCL on GPUs, gloo on CPUs."""

    kernel = "ncclDevKernel"

    def all_reduce(self, data: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(data)
        return data


class SymmetricMemory(Transport):
    """Holds one buffer a shape, made at its first use: that is a collective itself, and not for a capture."""

    def __init__(self) -> None:
        self._buffers: dict[tuple, torch.Tensor] = {}
        self._group_name = dist.group.WORLD.group_name

    def _buffer_like(self, data: torch.Tensor) -> torch.Tensor:
        import torch.distributed._symmetric_memory as symmetric_memory

        key = (tuple(data.shape), data.dtype)
        if key not in self._buffers:
            buffer = symmetric_memory.empty(data.shape, dtype=data.dtype, device=data.device)
            symmetric_memory.rendezvous(buffer, self._group_name)
            self._buffers[key] = buffer
        return self._buffers[key]


class OneShot(SymmetricMemory):
    """Every rank reads all of its peers' data: one kernel, which copies its own data to the buffer first."""

    kernel = "one_shot_all_reduce"

    def all_reduce(self, data: torch.Tensor) -> torch.Tensor:
        buffer = self._buffer_like(data)
        return torch.ops.symm_mem.one_shot_all_reduce_copy(buffer, data, "sum", self._group_name)


class TwoShot(SymmetricMemory):
    """Every rank sums its share and hands it to all: a copy in, one kernel, a copy out."""

    kernel = "two_shot_all_reduce"

    def all_reduce(self, data: torch.Tensor) -> torch.Tensor:
        buffer = self._buffer_like(data)
        buffer.copy_(data)
        torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", self._group_name)
        return buffer.clone()


TRANSPORTS = {"nccl": ProcessGroup, "one_shot": OneShot, "two_shot": TwoShot}
GLOO = "gloo"


def make(name: str) -> Transport:
    """name: one of TRANSPORTS, or GLOO."""
    return ProcessGroup() if name == GLOO else TRANSPORTS[name]()
