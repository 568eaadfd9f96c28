"""What prefetching does to a collective's own latency, with nothing else in the step but the prefetches beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .arms import Hooks, Ours
from .common import Goal, console, row_table
from .models import MIB, random_bytes
from .ranks import Ranks
from .runs import AUTO, EMPTY
from .timing import NULL, OFF, Timed, capture, gpu_block, host_block, row, time_in_turns
from .transports import Transport

_NUM_WINDOWS = 24
# Keeps a prefetch running for most of a short collective, and ends inside it.
_WEIGHT_BYTES = 8 * MIB
_NUM_TOKENS, _HIDDEN = 1, 8192
_GOAL = 1.01


def _step(
    transport: Transport, hooks: Hooks, weights: list[torch.Tensor], data: torch.Tensor
) -> Callable[[], list[torch.Tensor]]:
    """Collectives one after another, with a window each, and nothing that reads the weights."""

    def run() -> list[torch.Tensor]:
        summed = data
        with hooks.forward():
            for weight in weights:
                with hooks.collective(summed, "all_reduce"):
                    summed = transport.all_reduce(summed)
                hooks.record_weight(weight)
        return [summed]

    return run


def latency(case: str, ranks: Ranks, transport: Transport, num_rounds: int) -> tuple[list[dict[str, Any]], Goal]:
    """Rows in us a collective, by the slowest rank, and the goal."""
    on_gpu = ranks.device.type == "cuda"
    data = torch.zeros(_NUM_TOKENS, _HIDDEN, dtype=torch.bfloat16, device=ranks.device)
    weights = [random_bytes(_WEIGHT_BYTES, str(ranks.device)) for _ in range(_NUM_WINDOWS if on_gpu else 2)]
    ours = Ours(_NUM_TOKENS)

    def replay_of(hooks: Hooks) -> Callable[[], object]:
        step = _step(transport, hooks, weights, data)
        ranks.barrier()
        if on_gpu:
            return capture(step).replay
        step()
        step()
        return step

    off, null, with_prefetch = replay_of(Hooks()), replay_of(Hooks()), replay_of(ours)

    def turn(name: str, replay: Callable[[], object], set_windows: Callable[[], None] = lambda: None) -> Timed:
        def prepare() -> None:
            set_windows()
            ranks.barrier()

        return Timed(name, replay, prepare)

    arms = [
        turn(OFF, off),
        turn(NULL, null),
        turn(EMPTY, with_prefetch, lambda: ours.set_all(0)),
        turn(AUTO, with_prefetch, lambda: ours.set_all(_WEIGHT_BYTES, "auto")),
    ]
    times = ranks.slowest(time_in_turns(arms, num_rounds, block=gpu_block if on_gpu else host_block))
    rows = [row(case, arm, times, unit="us a collective") for arm in arms]
    for entry in rows:
        entry["value"] /= len(weights)
    console.print(row_table(case, rows, {"arm": "", "value": ".2f", "unit": "", "ratio_to_off": ".3f"}))
    ratio = next(entry["ratio_to_off"] for entry in rows if entry["arm"] == AUTO)
    return rows, Goal(f"{case}: latency with prefetch running, of without", ratio, _GOAL)

