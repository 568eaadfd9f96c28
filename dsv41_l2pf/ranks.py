"""The ranks that tune together. They exchange values only between steps: never inside one, never while capturing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .prefetcher import Prefetcher

_Key = tuple[int, str]  # number of tokens, mode


class Ranks:
    """Ranks that take every decision alike, by the slowest rank's times."""

    def __init__(self, process_group: Any) -> None:
        """process_group: None when this process tunes alone."""
        self._group = process_group
        if process_group is not None:
            on_gpu = torch.distributed.get_backend(process_group) == "nccl"
            self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    @property
    def are_alone(self) -> bool:
        return self._group is None

    def slowest(self, times: list[list[float]]) -> list[list[float]]:
        """The largest of every time over all ranks: the same numbers, and so the same decision, on each."""
        if self._group is None:
            return times
        slowest = torch.tensor(times, dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(slowest, torch.distributed.ReduceOp.MAX, group=self._group)
        return slowest.tolist()

    def all_of(self, mine: Any) -> list[Any]:
        """`mine` of every rank, in the order of ranks."""
        if self._group is None:
            return [mine]
        found = [None] * torch.distributed.get_world_size(self._group)
        torch.distributed.all_gather_object(found, mine, group=self._group)
        return found

    def one_signature(
        self, prefetcher: Prefetcher, num_tokens: int | None, mode: str | None, rounds: int, has_baseline: bool
    ) -> dict:
        """The one signature to tune. A rank without windows gets one without, and may go along with its peers.

        Raises ValueError, on all ranks alike: an error on one alone would leave its peers waiting in a collective.
        """
        status = prefetcher.status()
        fitting = [
            entry
            for entry in status["signatures"]
            if entry["windows"] and num_tokens in (None, entry["num_tokens"]) and mode in (None, entry["mode"])
        ]
        keys: list[_Key] = [(entry["num_tokens"], entry["mode"]) for entry in fitting]
        found = self.all_of((keys, rounds, has_baseline, _learned(status)))
        key = _one_key(found, f"num_tokens={num_tokens}, mode={mode!r}")
        if fitting:
            return fitting[0]
        same = [entry for entry in status["signatures"] if (entry["num_tokens"], entry["mode"]) == key]
        unknown = {"reason": "this signature was not learned", "latched_off": False, "num_collectives": 0}
        mine = same[0] if same else unknown
        here = {"num_tokens": key[0], "mode": key[1], "windows": [], "reason": status["reason"] or mine["reason"]}
        return {**mine, **here}


def _learned(status: dict) -> str:
    planned = [entry for entry in status["signatures"] if entry["windows"]]
    return ", ".join(f"{entry['num_tokens']} tokens in mode {entry['mode']}" for entry in planned) or "none"


def _one_key(found: list[tuple[list[_Key], int, bool, str]], asked: str) -> _Key:
    """found: of every rank the signatures that fit, the rounds, whether it gave a baseline, and what it learned."""
    all_keys, all_rounds, have_baseline, learned = zip(*found)
    if len(set(all_rounds)) > 1 or len(set(have_baseline)) > 1:
        raise ValueError(
            f"tune: expected the same rounds, and a baseline or none, on all ranks; got rounds {list(all_rounds)}, "
            f"baseline {list(have_baseline)}"
        )
    distinct = {key for keys in all_keys for key in keys}
    if len(distinct) == 1 and max(map(len, all_keys)) == 1:
        return distinct.pop()
    num_fitting = max(len(distinct), *map(len, all_keys))
    seen = "; ".join(dict.fromkeys(learned))
    raise ValueError(
        f"tune: expected one signature with windows, got {num_fitting} for {asked}; those learned: {seen}"
    )
