"""A few layers with a transformer's linears and one emulated rank's collectives: needs no packages beside torch."""

from __future__ import annotations

import torch
from torch import nn


class _Attention(nn.Module):
    def __init__(self, hidden: int, **kind: object) -> None:
        super().__init__()
        self.qkv = nn.Linear(hidden, hidden, bias=False, **kind)
        self.o = nn.Linear(hidden, hidden, bias=False, **kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o(torch.tanh(self.qkv(x)))


class _Mlp(nn.Module):
    def __init__(self, hidden: int, **kind: object) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 3 * hidden, bias=False, **kind)
        self.down = nn.Linear(3 * hidden, hidden, bias=False, **kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


class _Layer(nn.Module):
    def __init__(self, hidden: int, delay_us: float, **kind: object) -> None:
        super().__init__()
        self.delay_us = delay_us
        self.attention = _Attention(hidden, **kind)
        self.mlp = _Mlp(hidden, **kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (self.attention, self.mlp):
            y = block(x)
            torch.ops.dsv41.emulated_all_reduce(y, self.delay_us)
            x = x + y
        return x


class SmallModel(nn.Module):
    """hidden: the width. delay_us: what the emulated peers take to answer. Random weights without gradients."""

    def __init__(
        self,
        hidden: int,
        num_layers: int,
        delay_us: float,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        kind = {"device": device, "dtype": dtype}
        self.layers = nn.ModuleList([_Layer(hidden, delay_us, **kind) for _ in range(num_layers)])
        self.head = nn.Linear(hidden, hidden, bias=False, **kind)
        self.requires_grad_(False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """hidden_states: [num_tokens, hidden]; returns the same shape."""
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        return self.head(hidden_states)
