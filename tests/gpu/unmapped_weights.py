"""Run as a program, since a fault ends the process's CUDA: one scenario of weights that are unmapped under a graph.

Arguments: the scenario and the form. It ends with status 0 and prints `fine` when nothing touched unmapped memory.
"""

import sys

import torch
from chain import NUM_TOKENS, all_reduce, ops, random
from graph_inspect import capture
from mapped_memory import MappedMemory

import dsv41_l2pf as l2pf


class Scenario:
    """A captured forward whose only window is the mapped memory, which nothing but the prefetch reads."""

    def __init__(self, form: str) -> None:
        self.memory = MappedMemory()
        self.prefetcher = l2pf.Prefetcher(l2pf.Config(form=form, budget_bytes=1 << 30))
        self.x = random(NUM_TOKENS, 64)
        self.forward(), self.forward()
        self.graph, _ = capture(self.forward)
        assert self.window()["budget_bytes"] == self.memory.num_bytes
        self.replay()

    def forward(self) -> None:
        with self.prefetcher.forward(NUM_TOKENS):
            all_reduce(self.x, 5.0)
            ops.record_weight([self.memory.tensor()])

    def window(self) -> dict:
        return self.prefetcher.status()["signatures"][0]["windows"][0]

    def replay(self) -> None:
        for _ in range(20):
            self.graph.replay()
        torch.cuda.synchronize()

    def sleep_and_wake(self) -> None:
        for _ in range(3):
            self.prefetcher.pause()
            self.memory.unmap()
            self.replay()
            self.forward_without_weights()
            self.memory.map()
            self.prefetcher.resume()
            assert self.window()["budget_bytes"] == self.memory.num_bytes
            self.replay()

    def forward_without_weights(self) -> None:
        with self.prefetcher.forward(NUM_TOKENS):
            all_reduce(self.x, 5.0)

    def invalidated_before(self) -> None:
        self.prefetcher.invalidate()
        self.memory.unmap()
        self.replay()
        self.prefetcher.pause(), self.prefetcher.resume()
        self.replay()

    def invalidated_after(self) -> None:
        self.memory.unmap()
        self.prefetcher.invalidate()
        self.replay()
        self.memory.map()
        self.forward(), self.forward()
        assert self.window()["budget_bytes"] == self.memory.num_bytes
        capture(self.forward)[0].replay()
        torch.cuda.synchronize()

    def window_switched_off(self) -> None:
        self.prefetcher.set_window(0, num_tokens=NUM_TOKENS, budget_bytes=0)
        self.memory.unmap()
        self.replay()

    def last_byte(self) -> None:
        """Views that end with the mapping, at any alignment; Scenario() itself prefetched all of it."""
        for num_bytes in (16, 17, 4096, 100_001):
            self.prefetcher.invalidate()
            for _ in range(2):
                with self.prefetcher.forward(NUM_TOKENS):
                    all_reduce(self.x, 5.0)
                    ops.record_weight([self.memory.tensor()[-num_bytes:]])
            ops.l2_prefetch(self.x, [self.memory.tensor()[-num_bytes:]])
            ops.l2_join(self.x)
            torch.cuda.synchronize()


if __name__ == "__main__":
    with torch.no_grad():
        getattr(Scenario(sys.argv[2]), sys.argv[1])()
    torch.cuda.synchronize()
    print("fine")
