"""One rank's slice of a Llama whose row-parallel outputs are really summed over the ranks, in bf16 or FP8."""

from __future__ import annotations

import time
from typing import Any

import torch

from dsv41_l2pf.demo.gpu_model import CACHE_TOKENS, Decoder

from . import native
from .arms import Hooks
from .transformers_decode import make_model
from .transports import Transport

ROW_PARALLEL = ("o_proj", "down_proj")
DTYPES = ("bf16", "fp8")
_FP8_SCALE = 32.0  # lifts weights of a standard deviation of 0.02 out of FP8's denormals


def tiny_config(num_layers: int, num_ranks: int, width: int = 64) -> Any:
    """One of at most two ranks of a Llama that is too small to time. width: of the hidden state, a multiple of 64."""
    from transformers import LlamaConfig

    return LlamaConfig(
        num_hidden_layers=num_layers,
        hidden_size=width,
        num_attention_heads=4 // num_ranks,
        num_key_value_heads=2 // num_ranks,
        head_dim=width // 4,
        intermediate_size=2 * width // num_ranks,
        vocab_size=width,
        max_position_embeddings=CACHE_TOKENS,
    )


class Fp8Linear(torch.nn.Module):
    """A linear whose weight [out, in] is FP8 and whose input is cast to FP8, both with one fixed scale."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", (linear.weight * _FP8_SCALE).to(torch.float8_e4m3fn))
        self.register_buffer("weight_scale", torch.tensor(1 / _FP8_SCALE, device=linear.weight.device))
        self.register_buffer("input_scale", torch.ones((), device=linear.weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scales = {"scale_a": self.input_scale, "scale_b": self.weight_scale}
        rows = x.flatten(0, -2).to(torch.float8_e4m3fn)
        return torch._scaled_mm(rows, self.weight.t(), **scales, out_dtype=x.dtype).unflatten(0, x.shape[:-1])


def make_slice(config: Any, dtype: str, rank: int, device: torch.device) -> torch.nn.Module:
    """One rank's model. config: of a rank. dtype: of the layers' linears, one of DTYPES.

    What is not sharded, embedding, norms and head, is the same on every rank.
    """
    model = make_model(config, device)
    torch.manual_seed(1 + rank)
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, linear in list(block.named_children()):
                if isinstance(linear, torch.nn.Linear):
                    linear.weight.normal_(std=model.config.initializer_range)
                    if dtype == "fp8":
                        setattr(block, name, Fp8Linear(linear))
    return model


def windows_of(model: torch.nn.Module) -> list[list[torch.Tensor]]:
    """The weights read after each collective of one forward; the first layer's attention stands in no window."""
    windows: list[list[torch.Tensor]] = [[]]
    for layer in model.model.layers:
        windows[-1] += [getattr(layer.self_attn, name).weight for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
        windows.append([getattr(layer.mlp, name).weight for name in ("gate_proj", "up_proj", "down_proj")])
        windows.append([])
    windows[-1].append(model.lm_head.weight)
    return windows[1:]


class Collectives:
    """Sums the row-parallel outputs of a model. hooks: what an arm runs around each. late_us: this rank comes late."""

    def __init__(self, model: torch.nn.Module, transport: Transport) -> None:
        self.hooks = Hooks()
        self.late_us = 0.0
        self._transport = transport
        modules = [module for name, module in model.named_modules() if name.endswith(ROW_PARALLEL)]
        self._handles = [module.register_forward_hook(self._all_reduce) for module in modules]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _all_reduce(self, module: torch.nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor:
        if self.late_us:
            _hold(self.late_us, output.device)
        with self.hooks.collective(output, "all_reduce"):
            return self._transport.all_reduce(output)


def _hold(hold_us: float, device: torch.device) -> None:
    if device.type == "cuda":
        native.spin(hold_us)
    else:
        time.sleep(hold_us / 1e6)


class HookedDecoder:
    """A decoder whose step runs with the hooks of one arm around its collectives."""

    def __init__(self, decoder: Decoder, collectives: Collectives, hooks: Hooks) -> None:
        self._decoder = decoder
        self._collectives = collectives
        self._hooks = hooks

    def step(self) -> torch.Tensor:
        self._collectives.hooks = self._hooks
        try:
            with self._hooks.forward():
                return self._decoder.step()
        finally:
            self._collectives.hooks = Hooks()
