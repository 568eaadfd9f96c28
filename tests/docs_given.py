"""What the pages take for granted, by name: a tensor-parallel model of one rank and its input."""

import functools
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from gloo import join_group

HIDDEN = 256


class Block(torch.nn.Module):
    """The two linears of a tensor-parallel block, and the all-reduce between this block and the next."""

    def __init__(self):
        super().__init__()
        self.up_proj = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.down_proj = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        x = self.down_proj(torch.relu(self.up_proj(x)))
        dist.all_reduce(x)
        return x


@functools.cache
def group() -> None:
    """A process group of one rank."""
    join_group(Path(tempfile.mkdtemp()))


def model() -> torch.nn.Module:
    """A model without gradients, as every server's."""
    group()
    return torch.nn.Sequential(Block(), Block(), Block()).requires_grad_(False)


def x() -> torch.Tensor:
    """The activations of four tokens."""
    group()
    return torch.ones(4, HIDDEN)


def w() -> torch.Tensor:
    return torch.ones(HIDDEN, HIDDEN)


def num_tokens() -> int:
    return 4
