"""`Prefetcher.tune` with a process group, on two gloo ranks: one decision, whatever one of the ranks is like."""

import pytest
import torch
import torch.distributed as dist
from gloo import run_on_two_ranks
from three_linears import HIDDEN

import dsv41_l2pf as l2pf

X = torch.ones(2, HIDDEN)


class Model(torch.nn.Module):
    """`num_pairs` of a linear and an all-reduce, and a last linear."""

    def __init__(self, num_pairs=2):
        super().__init__()
        torch.manual_seed(0)
        self.pairs = torch.nn.ModuleList(torch.nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(num_pairs))
        self.last = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.requires_grad_(False)

    def forward(self, hidden_states):
        for linear in self.pairs:
            hidden_states = linear(hidden_states)
            dist.all_reduce(hidden_states)
        return self.last(hidden_states)


def learned(config=None):
    model = Model()
    prefetcher = l2pf.attach(model, config or l2pf.Config())
    model(X), model(X)
    return model, prefetcher


def tuned(model, prefetcher, **options):
    before = model(X)
    options = {"rounds": 2, **options}
    found = prefetcher.tune(lambda: model(X), process_group=dist.group.WORLD, progress=False, **options)
    signatures = prefetcher.status()["signatures"]
    return {
        "decision": (found.ratio, found.noise, found.step_us, found.measured),
        "budgets": [window.budget_bytes for window in found.windows],
        "set": [window["budget_bytes"] for entry in signatures for window in entry["windows"]],
        "reason": found.reason,
        "status": [entry["reason"] for entry in signatures],
        "equal": torch.equal(model(X), before),
    }


def assert_one_decision(results):
    first, second = results
    assert first["decision"] == second["decision"]
    assert all(result["equal"] and result["budgets"] == result["set"] for result in results)


def _made_up_times(rank, slow_rank_us):
    """Prefetching saves rank 0 a fifth; rank 1 it costs or saves what `slow_rank_us` says."""
    model, prefetcher = learned()

    def step_us(step, num_steps):
        on = any(w["budget_bytes"] for entry in prefetcher.status()["signatures"] for w in entry["windows"])
        return {0: 80.0, 1: slow_rank_us}[rank] if on else 100.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dsv41_l2pf.tune.stopwatch", lambda: step_us)
        return tuned(model, prefetcher)


def _slowed(rank):
    return _made_up_times(rank, 101.0)


def _sped_up(rank):
    return _made_up_times(rank, 90.0)


def test_what_slows_one_rank_is_off_on_both(results):
    found = results[_slowed]
    assert_one_decision(found)
    for result in found:
        assert result["decision"][0] == 1.0 and result["budgets"] == [0, 0]
        assert result["status"][0].startswith("off by tune: ")


def test_the_slower_rank_sets_the_ratio(results):
    found = results[_sped_up]
    assert_one_decision(found)
    for result in found:
        assert result["decision"][0] == pytest.approx(0.9) and min(result["budgets"]) > 0
        assert result["reason"].startswith("on by tune: ")


def _real_times(rank):
    model, prefetcher = learned()
    return tuned(model, prefetcher)


def test_real_steps_end_with_one_decision(results):
    assert_one_decision(results[_real_times])


def _one_switched_off(rank):
    model, prefetcher = learned(l2pf.Config(enabled=rank == 0))
    return tuned(model, prefetcher)


def test_a_rank_that_is_switched_off_goes_along(results):
    found = results[_one_switched_off]
    assert_one_decision(found)
    assert [len(result["budgets"]) for result in found] == [2, 0]
    assert found[1]["reason"].endswith("this rank only went along: off: Config(enabled=False)")


def _one_latched_off(rank):
    model, prefetcher = learned()
    prefetcher.invalidate()
    if rank == 1:
        prefetcher.windows.error = "a device call failed"  # what the first error leaves behind
    model(X), model(X)
    return {**tuned(model, prefetcher), "latched": prefetcher.status()["reason"]}


def test_a_rank_that_is_latched_off_goes_along(results):
    found = results[_one_latched_off]
    assert_one_decision(found)
    assert [len(result["budgets"]) for result in found] == [2, 0]
    assert [result["latched"] for result in found] == ["", "a device call failed"]
    assert found[1]["reason"].endswith("this rank only went along: a device call failed")


def _one_fails_while_tuning(rank):
    model, prefetcher = learned()
    set_window, calls = torch.ops.dsv41.set_window, iter(range(100))

    def fails_at_the_third_call(*args):
        if next(calls) == 2:
            raise RuntimeError("a copy to the device failed\nmore")
        set_window(*args)

    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(torch.ops.dsv41, "set_window", fails_at_the_third_call)
        return tuned(model, prefetcher)


def test_a_rank_whose_windows_cannot_be_set_any_more_keeps_its_peers_company(results):
    first, second = results[_one_fails_while_tuning]
    assert first["decision"] == second["decision"]
    assert first["equal"] and second["equal"]
    assert second["reason"].endswith("this rank only went along: a copy to the device failed")


def _different_plans(rank):
    model = Model()
    if rank == 1:
        # 32 MiB: more budgets are worth a try than on the other rank.
        model.last = torch.nn.Linear(HIDDEN, 2048 * HIDDEN, bias=False).requires_grad_(False)
    prefetcher = l2pf.attach(model, l2pf.Config())
    model(X), model(X)
    return tuned(model, prefetcher)


def test_ranks_with_different_plans_search_alike(results):
    found = results[_different_plans]
    first, second = found
    assert first["decision"] == second["decision"]
    assert "24 MiB" in first["decision"][3] and "40 MiB" not in first["decision"][3]
    assert all(result["equal"] and result["budgets"] == result["set"] for result in found)


def _problem(options):
    model, prefetcher = learned()
    with pytest.raises(ValueError) as raised:
        tuned(model, prefetcher, **options)
    return str(raised.value)


def _different_rounds(rank):
    return _problem({"rounds": 2 + rank})


def _one_baseline(rank):
    return _problem({"baseline": (lambda: None) if rank else None})


def _one_wrong_signature(rank):
    return _problem({"num_tokens": 2 + rank, "rounds": 2 - rank})


@pytest.mark.parametrize(
    "function, message",
    [
        (_different_rounds, "got rounds [2, 3], baseline [False, False]"),
        (_one_baseline, "got rounds [2, 2], baseline [False, True]"),
        (_one_wrong_signature, "expected at least 2 rounds, got 1"),
    ],
)
def test_a_mistake_of_one_rank_is_an_error_on_both(results, function, message):
    first, second = results[function]
    assert first == second and message in first


SCENARIOS = [
    _slowed,
    _sped_up,
    _real_times,
    _one_switched_off,
    _one_latched_off,
    _one_fails_while_tuning,
    _different_plans,
    _different_rounds,
    _one_baseline,
    _one_wrong_signature,
]


def _all_scenarios(rank):
    return [scenario(rank) for scenario in SCENARIOS]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both ranks returned from each scenario, all run by one pair of processes."""
    by_rank = run_on_two_ranks(_all_scenarios, tmp_path_factory.mktemp("ranks"))
    return dict(zip(SCENARIOS, zip(*by_rank)))
