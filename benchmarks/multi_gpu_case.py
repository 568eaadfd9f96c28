"""One case of `multi_gpu` on one rank: captures its steps, compares what they decode, times them in lockstep."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from dsv41_l2pf.demo.gpu_model import CapturedStep, Decoder
from dsv41_l2pf.demo.graph_nodes import read_graph

from .ranks import Ranks
from .sharded import Collectives
from .timing import Timed, gpu_block, host_block, null_spread, row, time_in_turns
from .transformers_decode import Steps

CHECKED_TOKENS = 8

Step = Callable[[], torch.Tensor]


class EagerStep:
    """`decoder.step`, where there is no graph to capture it into."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def __call__(self) -> torch.Tensor:
        return self._decoder.step()


class Case:
    """One model on one transport that decodes `num_tokens` sequences at once, on this rank."""

    def __init__(self, name: str, ranks: Ranks, decoder: Decoder, collectives: Collectives) -> None:
        self.name = name
        self.ranks = ranks
        self.decoder = decoder
        self.collectives = collectives
        self.steps = Steps(decoder)
        self.on_gpu = decoder.token.is_cuda
        self.block = gpu_block if self.on_gpu else host_block

    def capture(self, decoder: Any = None) -> Step:
        """A replay of a step of `decoder`, this case's when None; an eager step on a CPU."""
        self.ranks.barrier()
        if not self.on_gpu:
            return EagerStep(decoder or self.decoder)
        torch.cuda.synchronize()
        return CapturedStep(decoder or self.decoder)

    def expect_of(self, step: Step) -> None:
        """Makes what `step` decodes the result that every other one must match."""
        self._expected = self.decoder.decode(CHECKED_TOKENS, step)

    def require_same(self, name: str, step: Step) -> None:
        """Raises RuntimeError on all ranks unless `step` decodes on each what was expected, bit for bit."""
        tokens, logits = self.decoder.decode(CHECKED_TOKENS, step)
        same = tokens == self._expected[0] and torch.equal(logits, self._expected[1])
        self.ranks.require_none("" if same else f"{self.name}, {name}: tokens or logits differ from off")

    def ranks_agree(self) -> bool:
        """Whether all ranks decoded the same tokens."""
        tokens = self.ranks.all_of(self._expected[0])
        return all(found == tokens[0] for found in tokens)

    def arm(self, name: str, step: Step, set_windows: Callable[[], None] = lambda: None, **notes: Any) -> Timed:
        """An arm whose blocks begin at the prompt, on all ranks together."""

        def prepare() -> None:
            set_windows()
            self.steps.rewind()
            self.ranks.barrier()

        return Timed(name, self.steps.replay_of(step), prepare, notes)

    def measure(self, arms: list[Timed], num_rounds: int, **extra: Any) -> tuple[list[dict[str, Any]], float]:
        """The rows, by the slowest rank of every round, and the null spread."""
        mine = time_in_turns(arms, num_rounds, block=self.block)
        medians = self.ranks.all_of({arm: statistics.median(times) for arm, times in mine.items()})
        times = self.ranks.slowest(mine)
        rows = [row(self.name, arm, times, rank_us=[found[arm.name] for found in medians], **extra) for arm in arms]
        return rows, null_spread(times)


def frontier_of(step: Any) -> dict[str, int]:
    """How many launch-order edges into prefetch nodes come from each kernel, by its mangled name."""
    graph = read_graph(step.graph)
    sources = Counter(
        graph.nodes[edge.source].name
        for node in graph.kernels("l2pf_prefetch")
        for edge in graph.edges_into(node)
        if edge.is_launch_order
    )
    return dict(sources)


def share_behind(frontier: dict[str, int], kernel: str) -> float:
    """The share of a frontier's edges that come from kernels whose name contains `kernel`."""
    edges = sum(frontier.values())
    return sum(count for name, count in frontier.items() if kernel in name) / edges if edges else float("nan")
