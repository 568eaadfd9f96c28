"""Two gloo ranks of which one fails, is off, or has other plans: nobody waits forever, and both compute the same."""

import pytest
import torch
import torch.distributed as dist
from gloo import run_on_two_ranks

import dsv41_l2pf as l2pf
from dsv41_l2pf import Config, Prefetcher, attach

HIDDEN, NUM_TOKENS, NUM_STEPS = 64, 2, 4
TIMEOUT_S = 90


class Parallel(torch.nn.Module):
    """Each rank holds half of every product: a sum over the ranks follows each linear."""

    def __init__(self, rank):
        super().__init__()
        generator = torch.Generator().manual_seed(rank)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))
        self.requires_grad_(False)
        for layer in self.layers:
            layer.weight.copy_(torch.randint(-2, 3, layer.weight.shape, generator=generator))
        self.before_collective = lambda: None

    def forward(self, hidden_states):
        for layer in self.layers:
            hidden_states = layer(hidden_states).remainder(17)
            self.before_collective()
            dist.all_reduce(hidden_states)
        return hidden_states


def fail_in_the_library(rank, model, prefetcher):
    """The first operator before a collective fails on rank 0, as when its GPU does."""
    if rank == 0:

        def broken(*_):
            raise RuntimeError("out of memory")

        prefetcher.windows._call(broken)


def bad_argument(rank, model, prefetcher):
    if rank == 0:
        prefetcher.windows.open(torch.ones(2), "gossip")


def pause(rank, model, prefetcher):
    if rank == 0:
        prefetcher.pause()


def invalidate_before_each_collective(rank, model, prefetcher):
    if rank == 0:
        model.before_collective = prefetcher.invalidate


def pause_before_each_collective(rank, model, prefetcher):
    if rank == 0:
        model.before_collective = lambda: (prefetcher.pause(), prefetcher.resume())


def detach(rank, model, prefetcher):
    if rank == 0:
        prefetcher.detach()


def other_windows(rank, model, prefetcher):
    if rank == 0:
        for index in range(2):
            prefetcher.set_window(index, num_tokens=NUM_TOKENS, budget_bytes=0)


def free_a_weight(rank, model, prefetcher):
    if rank == 0:
        weight = model.layers[1].weight
        value = weight.clone()
        weight.untyped_storage().resize_(0)
        model.layers[1].weight = torch.nn.Parameter(value, requires_grad=False)


CHANGES = [
    fail_in_the_library,
    bad_argument,
    pause,
    invalidate_before_each_collective,
    pause_before_each_collective,
    detach,
    other_windows,
    free_a_weight,
]
CONFIGS = {
    "off": [Config(enabled=False), Config()],
    "no budget": [Config(budget_bytes=0), Config()],
    "fewer tokens": [Config(max_tokens=1), Config()],
}


def run(rank, change=None, config=None):
    model, x = Parallel(rank), torch.arange(NUM_TOKENS * HIDDEN).view(NUM_TOKENS, HIDDEN).float().remainder(5)
    expected = model(x)
    prefetcher = attach(model, config or Config())
    outputs = [model(x), model(x)]
    if change is not None:
        change(rank, model, prefetcher)
    outputs += [model(x) for _ in range(NUM_STEPS)]
    status = prefetcher.status()
    return {
        "equal": all(torch.equal(output, expected) for output in outputs),
        "reason": status["reason"],
        "launched": [signature["num_launched"] for signature in status["signatures"]],
        "open": l2pf.status()["forward"],
    }


def tune_while_paused(rank):
    model, x = Parallel(rank), torch.ones(NUM_TOKENS, HIDDEN)
    prefetcher = attach(model, Config())
    model(x), model(x)
    pause(rank, model, prefetcher)
    try:
        prefetcher.tune(lambda: model(x), rounds=2, progress=False, process_group=dist.group.WORLD)
    except ValueError as error:
        return {"error": str(error)}
    return {"error": "none"}


def _all_on_one_rank(rank):
    results = {change.__name__: run(rank, change) for change in CHANGES}
    results |= {name: run(rank, config=configs[rank]) for name, configs in CONFIGS.items()}
    results["tune while paused"] = tune_while_paused(rank)
    results["alone in the end"] = len(Prefetcher(Config()).status()["signatures"])
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run_on_two_ranks(_all_on_one_rank, tmp_path_factory.mktemp("ranks"), TIMEOUT_S)


@pytest.mark.parametrize("name", [change.__name__ for change in CHANGES] + list(CONFIGS))
def test_both_ranks_go_on_and_compute_the_same(results, name):
    for rank in range(2):
        found = results[rank][name]
        assert found["equal"] and found["open"] is None, (rank, found)
    healthy = results[1][name]
    assert (healthy["reason"], healthy["launched"]) == ("", [2]), "rank 1 is not drawn in"


@pytest.mark.parametrize(
    ("name", "reason"), [("fail_in_the_library", "out of memory"), ("bad_argument", "expected `kind` to be one of")]
)
def test_the_failing_rank_says_why_it_is_off(results, name, reason):
    assert reason in results[0][name]["reason"]


def test_a_tune_that_one_rank_cannot_join_is_an_error_on_both(results):
    errors = [results[rank]["tune while paused"]["error"] for rank in range(2)]
    assert errors[0] == errors[1] and errors[0].startswith("tune: expected a prefetcher that is not paused")
