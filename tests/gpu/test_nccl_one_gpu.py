"""Real NCCL collectives in captured forwards: two ranks on one GPU, each of which takes itself for another host.

The ranks are time-sliced, so times mean nothing here; values, nodes, edges and decisions do.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import decode_checks as checks
import pytest
import torch

pytestmark = pytest.mark.cuda

RANK = Path(__file__).with_name("nccl_rank.py")
DECODE_RANK = Path(__file__).with_name("nccl_decode_rank.py")
TIMEOUT_S = 150


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(script: Path, folder: Path) -> list[dict]:
    """What `script` printed in its last line, as JSON, on each rank."""
    common = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
    }
    logs = [folder / f"rank{rank}.log" for rank in range(2)]
    ranks, outputs = [], []
    try:
        for rank, log in enumerate(logs):
            # NCCL refuses two ranks on one GPU of one host.
            environ = {**common, "RANK": str(rank), "LOCAL_RANK": "0", "NCCL_HOSTID": f"host{rank}"}
            with log.open("w") as stderr:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, str(script)], env=environ, stdout=subprocess.PIPE, stderr=stderr, text=True
                    )
                )
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


def test_each_window_is_a_node_behind_its_nccl_kernel(tmp_path):
    torch.cuda.synchronize()
    for result in run_ranks(RANK, tmp_path):
        # Edges are checked in the ranks: a launch-order edge from each NCCL kernel, the chain, the join.
        assert result["num_nodes"] == result["num_collectives"] == 3
        signature = result["signature"]
        assert (signature["state"], signature["reason"], signature["num_launched"]) == ("frozen", "", 3)
        # Three all-reduces over two ranks: the first adds the ranks' inputs, the others double; then 1 is added.
        assert result["eager"] == [13.0, 13.0]
        assert result["replayed"] == [[value, value] for value in (4.0 * (3 + 2 * i) + 1 for i in range(5))]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both ranks returned from every scenario of a Llama's tensor-parallel decode."""
    torch.cuda.synchronize()
    return run_ranks(DECODE_RANK, tmp_path_factory.mktemp("decode"))


def test_decode_is_the_same_on_and_off_and_each_collective_has_its_node(results):
    checks.assert_on_and_off(results, checks.FROZEN)


def test_a_rank_that_is_latched_off_captures_and_replays_with_its_peer(results):
    checks.assert_one_rank_latched_off(results)


def test_ranks_with_different_plans_replay_together(results):
    checks.assert_different_plans(results)


def test_ranks_relearn_and_recapture_in_lockstep_and_one_alone(results):
    checks.assert_relearned_and_recaptured(results, checks.FROZEN)


def test_tune_with_a_process_group_decides_once(results):
    checks.assert_tuned_alike(results)


def test_tune_goes_on_with_one_rank_latched_off(results):
    checks.assert_tuned_with_one_latched_off(results)
