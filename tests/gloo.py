"""Runs a function on two gloo ranks, each a process of its own, and gives up after a while."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

NUM_RANKS = 2


def join_group(folder: Path, rank: int = 0, num_ranks: int = 1, backend: str = "gloo") -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"  # a sandbox's host name may not resolve
    # A file, so that there is no port to lose a race for.
    dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=rank, world_size=num_ranks)


def _run_rank(rank: int, function: Callable, folder: Path) -> None:
    torch.set_num_threads(1)
    join_group(folder, rank, NUM_RANKS)
    try:
        torch.save(function(rank), folder / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def run_on_two_ranks(function: Callable, folder: Path, timeout_s: float = 120) -> list:
    """What `function(rank)`, a module's top-level function, returned on each rank. Raises what a rank raised."""
    ranks = mp.start_processes(_run_rank, (function, folder), nprocs=NUM_RANKS, join=False, start_method="spawn")
    deadline = time.monotonic() + timeout_s
    while not ranks.join(timeout=0.5):
        if time.monotonic() > deadline:
            for process in ranks.processes:
                process.kill()
            raise TimeoutError(f"{function.__name__} did not end on {NUM_RANKS} ranks within {timeout_s} s")
    return [torch.load(folder / f"{rank}.pt") for rank in range(NUM_RANKS)]
