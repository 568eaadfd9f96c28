"""Rank slices for the compile tests: linears with a collective behind each, as tensor-parallel decode has them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

HIDDEN, TOKENS, LAYERS = 64, 4, 2

Collective = Callable[[torch.Tensor], torch.Tensor]


def emulated(x: torch.Tensor) -> torch.Tensor:
    torch.ops.dsv41.emulated_all_reduce(x, 1.0)
    return x


def in_place(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x, "sum", dist.group.WORLD)


def all_gather(x: torch.Tensor) -> torch.Tensor:
    return functional.all_gather_tensor(x, 0, dist.group.WORLD)


def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    return functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD)


def all_to_all(x: torch.Tensor) -> torch.Tensor:
    return functional.all_to_all_single(x, None, None, dist.group.WORLD)


def coalesced(x: torch.Tensor) -> torch.Tensor:
    first, second = functional.all_reduce_coalesced([x, x + 1], "sum", dist.group.WORLD)
    return first + second


COLLECTIVES = [emulated, in_place, all_reduce, all_gather, reduce_scatter, all_to_all, coalesced]


class Layer(torch.nn.Module):
    def __init__(self, collective: Collective):
        super().__init__()
        self.up = torch.nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.down = torch.nn.Linear(2 * HIDDEN, HIDDEN)
        self.collective = collective

    def forward(self, x):
        return x + self.collective(self.down(torch.relu(self.up(x))))


class Chain(torch.nn.Module):
    """`num_layers` layers, a collective at the end of each, and a head: as many windows as layers."""

    def __init__(self, collective: Collective, num_layers: int = LAYERS):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Layer(collective) for _ in range(num_layers))
        self.head = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def windows(self) -> list[tuple[str, ...]]:
        """The names of the weights read after each collective."""
        names = [
            (f"layers.{i}.up.weight", f"layers.{i}.down.weight", f"layers.{i}.down.bias")
            for i in range(len(self.layers))
        ]
        return [*names[1:], ("head.weight",)]


def tokens(num_tokens: int = TOKENS) -> torch.Tensor:
    return torch.randn(num_tokens, HIDDEN, generator=torch.Generator().manual_seed(1))
