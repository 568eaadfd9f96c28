"""Real NCCL collectives in captured forwards: two ranks on one GPU, each of which takes itself for another host.

The ranks are time-sliced, so times mean nothing here; values, nodes, edges and decisions do.
"""

from pathlib import Path

import decode_checks as checks
import pytest
import torch
from launch import DECODE_RANK, run_ranks

pytestmark = pytest.mark.cuda

RANK = Path(__file__).with_name("nccl_rank.py")


def test_each_window_is_a_node_behind_its_nccl_kernel(tmp_path):
    torch.cuda.synchronize()
    for result in run_ranks([RANK], tmp_path):
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
    return run_ranks([DECODE_RANK, "nccl"], tmp_path_factory.mktemp("decode"))


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
