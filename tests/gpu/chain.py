"""Rank-slice stand-ins for the GPU tests: a chain of bf16 linears, an emulated collective after each."""

from __future__ import annotations

import gc
import time

import torch
from graph_inspect import EMULATED_COLLECTIVE, PREFETCH, assert_behind

import dsv41_l2pf as l2pf

ops = torch.ops.dsv41
DELAY_US = 20.0
NUM_TOKENS = 4
WIDTH = 1024


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32, device="cuda").to(torch.bfloat16)


def weight(out_features: int, in_features: int, seed: int = 0) -> torch.Tensor:
    return random(out_features, in_features, seed=seed) / in_features**0.5


def all_reduce(x: torch.Tensor, delay_us: float = DELAY_US) -> None:
    """A bracketed collective that leaves `x` as it is."""
    ops.collective_begin(x, "all_reduce")
    ops.emulated_all_reduce(x, delay_us)
    ops.collective_end(x)


def free_everything():
    """Lets go of what dead graphs held: CUDA runs their destructors on its own thread, an operator then empties it."""
    for _ in range(4):
        gc.collect()
        torch.cuda.synchronize()
        x = random(1, 64)
        ops.l2_prefetch(x, [x])
        ops.l2_join(x)
        time.sleep(0.05)
    del x
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def bare_windows(x, weights, delay_us=5.0):
    """A forward that reads no weight itself: what stays alive is then the library's doing alone."""
    all_reduce(x, delay_us)
    ops.record_weight(weights)


class Chain:
    """`num_layers` linears, an all-reduce behind each, and a head: as many windows as layers."""

    def __init__(self, num_layers: int = 4, **config: object) -> None:
        self.prefetcher = l2pf.Prefetcher(l2pf.Config(**config))
        self.layers = [weight(WIDTH, WIDTH, seed=i) for i in range(num_layers)]
        self.head = weight(WIDTH, WIDTH, seed=num_layers)
        self.x = random(NUM_TOKENS, WIDTH, seed=100)

    def run(self, num_layers: int | None = None, *, head: bool = True) -> torch.Tensor:
        """The model code. num_layers: stop early. head: False ends with the last all-reduce."""
        x = self.x
        for layer in self.layers[:num_layers]:
            ops.record_weight([layer])
            x = torch.nn.functional.linear(x, layer)
            all_reduce(x)
        ops.record_weight([self.head])
        return torch.nn.functional.linear(x, self.head) if head else x

    def forward(self, num_layers: int | None = None, *, head: bool = True) -> torch.Tensor:
        """One bracketed forward."""
        with self.prefetcher.forward(NUM_TOKENS):
            return self.run(num_layers, head=head)

    def learn(self) -> Chain:
        for _ in range(2):
            self.forward()
        torch.cuda.synchronize()
        return self

    def signature(self) -> dict:
        (signature,) = self.prefetcher.status()["signatures"]
        return signature


def assert_all_windows_are_nodes(chain: Chain, seen):
    """One node a window, behind its collective."""
    nodes = seen.kernels(PREFETCH)
    signature = chain.signature()
    assert len(nodes) == len(chain.layers) == signature["num_windows"] == signature["num_launched"]
    assert (signature["state"], signature["reason"]) == ("frozen", "")
    assert_behind(seen, nodes, seen.kernels(EMULATED_COLLECTIVE))
