"""Starts two ranks, each a process of its own, and gives up after a while."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

DECODE_RANK = Path(__file__).with_name("decode_rank.py")
TIMEOUT_S = 150


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(command: list, folder: Path, on_one_gpu: bool = True) -> list[dict]:
    """What two ranks printed in their last lines, as JSON. command: a script and its arguments. folder: for logs."""
    common = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        # Multicast between GPUs can put a host's GPUs, which others share, out of service.
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    }
    logs = [folder / f"rank{rank}.log" for rank in range(2)]
    ranks, outputs = [], []
    try:
        for rank, log in enumerate(logs):
            environ = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            if on_one_gpu:  # NCCL refuses two ranks on one GPU of one host
                environ |= {"LOCAL_RANK": "0", "NCCL_HOSTID": f"host{rank}"}
                # What a time-sliced GPU is calibrated to is nobody else's business.
                environ["XDG_CACHE_HOME"] = str(folder / f"cache{rank}")
            with log.open("w") as stderr:
                words = [sys.executable, *map(str, command)]
                ranks.append(subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=stderr, text=True))
        for rank in ranks:
            outputs.append(rank.communicate(timeout=TIMEOUT_S)[0])
    except subprocess.TimeoutExpired:
        pytest.fail(f"the ranks did not end in {TIMEOUT_S} s:\n" + "\n".join(log.read_text()[-3000:] for log in logs))
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank, log in zip(ranks, logs):
        assert rank.returncode == 0, log.read_text()[-3000:]
    return [json.loads(output.strip().splitlines()[-1]) for output in outputs]
