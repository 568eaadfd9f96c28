"""The scenarios of tests/gpu/test_nccl_one_gpu.py in their nearest form without a GPU: two gloo ranks, eager steps."""

import decode_checks as checks
import pytest
import torch
import torch.distributed as dist
from benchmarks.ranks import Ranks
from benchmarks.transports import GLOO
from decode_scenarios import SCENARIOS, run_all, tune
from gloo import run_on_two_ranks


def _run_all(_rank):
    scenarios = tuple(scenario for scenario in SCENARIOS if scenario is not tune)  # tests/test_tune_ranks.py has that
    return run_all(Ranks(torch.device("cpu"), dist.group.WORLD), GLOO, scenarios)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run_on_two_ranks(_run_all, tmp_path_factory.mktemp("decode"), timeout_s=60)


def test_outputs_are_the_same_on_and_off_and_each_collective_has_its_prefetch(results):
    checks.assert_on_and_off(results, checks.PLANNED)


def test_a_rank_that_is_latched_off_keeps_step(results):
    checks.assert_one_rank_latched_off(results)


def test_ranks_with_different_plans_keep_step(results):
    checks.assert_different_plans(results)


def test_ranks_relearn_in_lockstep_and_one_alone(results):
    checks.assert_relearned_and_recaptured(results, checks.PLANNED)


def test_tune_goes_on_with_one_rank_latched_off(results):
    checks.assert_tuned_with_one_latched_off(results)
