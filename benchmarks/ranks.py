"""The ranks of one host that run a benchmark together, in lockstep: every decision is taken by all of them alike."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from .common import Document

# A rank that raised leaves its peers in a collective: this long until the others give up, and torchrun ends them.
_GIVE_UP_AFTER = timedelta(seconds=90)


class Ranks:
    """All ranks, seen from one. They exchange values through gloo on the host, never on the GPU or in a capture."""

    def __init__(self, device: torch.device, host: Any) -> None:
        """Of a default group that stands already. device: this rank's. host: a gloo group of the same ranks."""
        self.rank = dist.get_rank()
        self.num_ranks = dist.get_world_size()
        self.device = device
        self.host = host

    @classmethod
    def join(cls, on_cpu: bool) -> Ranks:
        """Of the processes that torchrun started. on_cpu: gloo only, for machines without GPUs."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host, whose name may not resolve
        device = torch.device("cpu") if on_cpu else torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if on_cpu:
            dist.init_process_group("gloo", timeout=_GIVE_UP_AFTER)
        else:
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=device)
        return cls(device, dist.new_group(backend="gloo", timeout=_GIVE_UP_AFTER))

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        dist.barrier(group=self.host)

    def all_of(self, mine: Any) -> list[Any]:
        """`mine` of every rank, in the order of ranks."""
        found: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(found, mine, group=self.host)
        return found

    def require_none(self, problem: str) -> None:
        """Raises RuntimeError on every rank when one of them has a problem."""
        problems = [f"rank {rank}: {found}" for rank, found in enumerate(self.all_of(problem)) if found]
        if problems:
            raise RuntimeError("; ".join(problems))

    @contextmanager
    def case(self, document: Document, name: str) -> Iterator[None]:
        """`Document.case` for all ranks: a case that raises on all of them alike does not take the others along."""
        with document.case(name):
            yield
        errors = self.all_of(document.failed.get(name, ""))
        if any(errors):
            document.failed[name] = next(error for error in errors if error)

    def slowest(self, times: dict[str, list[float]]) -> dict[str, list[float]]:
        """Round by round the time of the slowest rank, which is the step's."""
        by_rank = self.all_of(times)
        return {arm: [max(found) for found in zip(*(times[arm] for times in by_rank))] for arm in times}


def run(main: Callable[[], int]) -> NoReturn:
    """Runs `main` and ends this rank at once with its status: a communicator would wait for the graphs it is in."""
    try:
        status = main()
    except Exception:  # noqa: BLE001  the interpreter's own way out can hang
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
