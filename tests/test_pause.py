"""`pause`, `resume` and `invalidate` on the CPU: what runs, what is learned, what status says, and what is refused."""

import re

import pytest
import torch
from three_linears import Model, X, segment, signature

import dsv41_l2pf as l2pf
from dsv41_l2pf import Config, attach

REJECTED = (ValueError, RuntimeError)


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def prefetcher(model):
    prefetcher = attach(model, Config())
    model(X), model(X)
    yield prefetcher
    prefetcher.detach()


def budgets(prefetcher):
    return [window["budget_bytes"] for window in signature(prefetcher)["windows"]]


def test_while_paused_nothing_is_launched_or_learned(model, prefetcher):
    before = signature(prefetcher)
    prefetcher.pause()
    status = prefetcher.status()
    assert status["paused"] and budgets(prefetcher) == [0, 0] and signature(prefetcher)["planned_bytes"] == 0
    model.b.weight = torch.nn.Parameter(torch.ones(64, 64), requires_grad=False)
    assert torch.equal(model(X), Model.forward(model, X))
    assert signature(prefetcher)["num_eager"] == before["num_eager"]
    prefetcher.resume()
    assert not prefetcher.status()["paused"] and signature(prefetcher) == before
    model(X)
    assert prefetcher.plan_segments(2)[0] == segment(0, model.b.weight)


def test_while_paused_a_hook_is_one_check(model, prefetcher, monkeypatch):
    prefetcher.pause()
    monkeypatch.setattr(prefetcher, "forward", lambda *_: pytest.fail("a paused forward was bracketed"))
    model(X)


def test_a_bracket_by_hand_does_not_count_while_paused(prefetcher):
    prefetcher.pause()
    with prefetcher.forward(2) as counts:
        assert counts is False and l2pf.status()["forward"] is None
    prefetcher.resume()
    with prefetcher.forward(2) as counts:
        assert counts is True


def test_pauses_nest(model, prefetcher):
    before = budgets(prefetcher)
    prefetcher.pause(), prefetcher.pause()
    prefetcher.resume()
    assert prefetcher.is_paused and budgets(prefetcher) == [0, 0]
    prefetcher.resume()
    assert not prefetcher.is_paused and budgets(prefetcher) == before


def test_a_pause_inside_a_forward_leaves_that_forward_harmless(model, prefetcher):
    before = signature(prefetcher)
    with prefetcher.forward(2):
        torch.ops.dsv41.collective_begin(X, "all_reduce")
        prefetcher.pause()
        torch.ops.dsv41.collective_end(X)
        torch.ops.dsv41.collective_begin(X, "all_reduce")
        torch.ops.dsv41.collective_end(X)
    prefetcher.resume()
    assert signature(prefetcher) == before
    assert not any(device["outstanding"] for device in l2pf.status()["devices"])


def test_a_budget_set_while_paused_comes_with_the_resume(prefetcher):
    kept = budgets(prefetcher)[1]
    prefetcher.pause()
    prefetcher.set_window(0, num_tokens=2, budget_bytes=1024)
    assert budgets(prefetcher) == [0, 0]
    prefetcher.resume()
    assert budgets(prefetcher) == [1024, kept]


def test_a_pause_survives_invalidate(model, prefetcher):
    prefetcher.pause()
    prefetcher.invalidate()
    model(X)
    assert signature(prefetcher)["state"] == "unlearned"
    prefetcher.resume()
    model(X)
    assert signature(prefetcher)["state"] == "planned"


def test_a_resume_without_a_pause_is_refused(prefetcher):
    with pytest.raises(REJECTED, match="expected a paused prefetcher, got one that is not paused"):
        prefetcher.resume()
    assert not prefetcher.is_paused


def test_a_tune_while_paused_is_refused(model, prefetcher):
    prefetcher.pause()
    with pytest.raises(ValueError, match=re.escape("tune: expected a prefetcher that is not paused, got one that is")):
        prefetcher.tune(lambda: model(X), progress=False)


def test_a_prefetcher_that_is_off_takes_both():
    prefetcher = l2pf.Prefetcher(Config(enabled=False))
    prefetcher.pause(), prefetcher.resume(), prefetcher.resume()
    assert prefetcher.status()["paused"] is False


def test_a_pause_that_fails_counts_and_raises(prefetcher, monkeypatch):
    pause = torch.ops.dsv41.pause

    def failing(handle):
        pause(handle)
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(torch.ops.dsv41, "pause", failing)
    with pytest.raises(RuntimeError, match="the device is gone"):
        prefetcher.pause()
    assert prefetcher.is_paused
