"""One rank's slice of a model as a list of parts, with random weights, and the step that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from . import native

if TYPE_CHECKING:
    from .arms import Hooks

MIB = 1 << 20
# What a collective carries, in floats: 64 KiB, as the probes of lab/ sent.
_COLLECTIVE_FLOATS = 16384
COLLECTIVE_CTAS = 4


@dataclass(frozen=True)
class Linear:
    """y[M, n] = x[M, k] w[n, k]^T, in FP8 or bf16. groups > 1: so many of them side by side, as one batched matmul."""

    name: str
    k: int
    n: int
    fp8: bool = True
    groups: int = 1

    @property
    def num_bytes(self) -> int:
        return self.groups * self.n * self.k * (1 if self.fp8 else 2)


@dataclass(frozen=True)
class Collective:
    kind: str


@dataclass(frozen=True)
class Experts:
    """Routed experts: a streamed read of bytes that nobody can plan."""

    num_bytes: int


@dataclass(frozen=True)
class Shape:
    """A model: `num_layers` times the same parts."""

    name: str
    layer: tuple[Linear | Collective | Experts, ...]
    num_layers: int

    @property
    def num_windows(self) -> int:
        return self.num_layers * sum(isinstance(part, Collective) for part in self.layer)


def llama_70b(tensor_parallel: int, num_layers: int = 16) -> Shape:
    """One FP8 rank of a Llama-70B-class model."""
    hidden, heads, intermediate = 8192, 8192 // tensor_parallel, 28672 // tensor_parallel
    return Shape(
        f"llama-70b fp8 tp{tensor_parallel}",
        (
            Linear("qkv", hidden, heads + 2048 // tensor_parallel),
            Linear("o", heads, hidden),
            Collective("all_reduce"),
            Linear("gate_up", hidden, 2 * intermediate),
            Linear("down", intermediate, hidden),
            Collective("all_reduce"),
        ),
        num_layers,
    )


def deepseek_v41_flash(wo_a: bool, num_layers: int = 20) -> Shape:
    """One TP4 rank of DeepSeek-V4.1-Flash, as lab/dsv4.py has it.

    wo_a: with the grouped bf16 output projection between wq_b and wo_b, which that probe left out. Its shape is not
    published with the others; it follows from its neighbours: 8192 in and 2048 out are 2 groups of 4096 -> 1024.
    """
    grouped = (Linear("wo_a", 4096, 1024, fp8=False, groups=2),) if wo_a else ()
    return Shape(
        "deepseek-v4.1-flash tp4" + (" with wo_a" if wo_a else ""),
        (
            Linear("wqkv_a", 5120, 1792),
            Collective("all_gather"),
            Linear("wq_b", 1280, 8192),
            *grouped,
            Linear("wo_b", 2048, 5120),
            Collective("all_reduce"),
            Linear("router", 5120, 384, fp8=False),
            Linear("gate_up", 5120, 1152),
            Experts(24 * MIB),
            Linear("down", 640, 5120),
            Collective("all_reduce"),
        ),
        num_layers,
    )


def random_bytes(num_bytes: int, device: str = "cuda") -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, device=device).random_()


class Slice:
    """The weights of a `Shape` on a device.

    one_weight: every layer uses the first one's weights, so that they stay in L2.
    """

    def __init__(self, shape: Shape, device: str = "cuda", one_weight: bool = False) -> None:
        torch.manual_seed(0)
        self.shape = shape
        self.device = device
        self._linears = [part for part in shape.layer if isinstance(part, Linear)]
        num_made = 1 if one_weight else shape.num_layers
        made = [{linear.name: self._weight(linear) for linear in self._linears} for _ in range(num_made)]
        self.layers = made * shape.num_layers if one_weight else made
        self.data = torch.ones(_COLLECTIVE_FLOATS, device=device)
        self._one = torch.ones((), device=device)
        stream_bytes = sum(part.num_bytes for part in shape.layer if isinstance(part, Experts))
        self._experts = random_bytes(stream_bytes * shape.num_layers, device)

    def _random(self, *size: int, fp8: bool) -> torch.Tensor:
        values = torch.randn(size, device=self.device)
        return values.to(torch.float8_e4m3fn if fp8 else torch.bfloat16)

    def _weight(self, linear: Linear) -> torch.Tensor:
        size = (linear.n, linear.k) if linear.groups == 1 else (linear.groups, linear.n, linear.k)
        return self._random(*size, fp8=linear.fp8)

    def inputs(self, num_tokens: int) -> dict[str, torch.Tensor]:
        """One x of `num_tokens` rows for each linear of a layer."""
        torch.manual_seed(num_tokens)
        sizes = {
            linear: (num_tokens, linear.k) if linear.groups == 1 else (linear.groups, num_tokens, linear.k)
            for linear in self._linears
        }
        return {linear.name: self._random(*size, fp8=linear.fp8) for linear, size in sizes.items()}

    def windows(self) -> list[list[torch.Tensor]]:
        """For each collective of a step the weights read after it and before the next one, in reading order.

        No window reaches into the next step: no arm prefetches what the first layer reads before its first collective.
        """
        windows: list[list[torch.Tensor]] = []
        for weights in self.layers:
            for part in self.shape.layer:
                if isinstance(part, Collective):
                    windows.append([])
                elif isinstance(part, Linear) and windows:
                    windows[-1].append(weights[part.name])
        return windows

    def step(
        self, hooks: Hooks, inputs: dict[str, torch.Tensor], delay_us: float, num_ctas: int = COLLECTIVE_CTAS
    ) -> Callable[[], list[torch.Tensor]]:
        """A function that runs one step with `hooks` around its collectives and returns all that it computes."""

        def run() -> list[torch.Tensor]:
            outputs = []
            experts_at = self._experts.data_ptr()
            with hooks.forward():
                for weights in self.layers:
                    for part in self.shape.layer:
                        if isinstance(part, Collective):
                            with hooks.collective(self.data, part.kind):
                                torch.ops.dsv41.emulated_all_reduce(self.data, delay_us, num_ctas)
                        elif isinstance(part, Experts):
                            hooks.record_unplanned(part.num_bytes)
                            native.read(experts_at, part.num_bytes)
                            experts_at += part.num_bytes
                        else:
                            hooks.record_weight(weights[part.name])
                            outputs.append(self._apply(part, inputs[part.name], weights[part.name]))
            return [*outputs, self.data]

        return run

    def _apply(self, linear: Linear, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        transposed = weight.transpose(-1, -2)
        if linear.fp8:
            return torch._scaled_mm(x, transposed, scale_a=self._one, scale_b=self._one, out_dtype=torch.bfloat16)
        return torch.matmul(x, transposed)
