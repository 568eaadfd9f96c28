"""Prefetcher: what is planned and launched, with a hook and by hand, and that an error never reaches a collective."""

import threading

import pytest
import torch
from three_linears import HIDDEN, Model, X, segment, signature

import dsv41_l2pf
from dsv41_l2pf import Config, attach


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def prefetcher(model):
    prefetcher = attach(model, Config())
    yield prefetcher
    prefetcher.detach()


def test_the_plan_is_the_weights_after_each_collective(model, prefetcher):
    expected = Model.forward(model, X)
    outputs = [model(X), model(X)]
    assert all(torch.equal(output, expected) for output in outputs)
    assert prefetcher.plan_segments(2) == [segment(0, model.b.weight), segment(1, model.c.weight)]
    found = signature(prefetcher)
    assert found["state"] == "planned"
    assert (found["num_collectives"], found["num_windows"], found["num_launched"]) == (2, 2, 2)
    assert [window["window_bytes"] for window in found["windows"]] == [HIDDEN * HIDDEN * 4] * 2
    assert found["prologue_bytes"] == HIDDEN * HIDDEN * 4


def test_the_first_forward_only_learns(model, prefetcher):
    model(X)
    assert signature(prefetcher)["num_launched"] == 0


def test_replaced_weights_are_planned_by_the_next_forward(model, prefetcher):
    model(X)
    model.b.weight = torch.nn.Parameter(torch.ones(HIDDEN, HIDDEN), requires_grad=False)
    model(X)
    assert prefetcher.plan_segments(2) == [segment(0, model.b.weight), segment(1, model.c.weight)]


def test_each_number_of_tokens_is_its_own_signature(model, prefetcher):
    model(X)
    model.forward(torch.ones(3, 5, HIDDEN))
    assert sorted(entry["num_tokens"] for entry in prefetcher.status()["signatures"]) == [2, 15]


def test_forwards_over_max_tokens_are_left_alone(model, monkeypatch):
    prefetcher = attach(model, Config(max_tokens=2))
    model(X)
    monkeypatch.setattr(torch.ops.dsv41, "begin_forward", lambda *_: pytest.fail("a large forward was begun"))
    model(torch.ones(3, HIDDEN))
    assert [entry["num_tokens"] for entry in prefetcher.status()["signatures"]] == [2]


def test_a_nested_attached_model_belongs_to_the_outer_forward(model):
    outer = torch.nn.Sequential(model)
    inner_prefetcher, outer_prefetcher = attach(model, Config()), attach(outer, Config())
    outer(X), outer(X)
    assert inner_prefetcher.status()["signatures"] == []
    assert outer_prefetcher.plan_segments(2) == [segment(0, model.b.weight), segment(1, model.c.weight)]
    assert outer_prefetcher.weight_name(model.b.weight.data_ptr()) == "0.b.weight"
    model(X)
    assert len(inner_prefetcher.status()["signatures"]) == 1


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes_plan_the_same(model, prefetcher, context):
    with context():
        model(X)
    assert prefetcher.plan_segments(2) == [segment(0, model.b.weight), segment(1, model.c.weight)]


def test_threads_have_their_own_forward(model, prefetcher):
    threads = [threading.Thread(target=lambda n=n: [model(torch.ones(n, HIDDEN)) for _ in range(5)]) for n in (1, 2, 3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for num_tokens in (1, 2, 3):
        assert prefetcher.plan_segments(num_tokens) == [segment(0, model.b.weight), segment(1, model.c.weight)]
    assert dsv41_l2pf.status()["forward"] is None


def test_a_compiled_model_is_left_to_the_compiler(model, prefetcher):
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), Model.forward(model, X))
    assert prefetcher.status()["signatures"] == []


def test_the_models_exception_passes_and_nothing_stays_open(model, prefetcher):
    model(X)
    model.fail = True
    with pytest.raises(ArithmeticError, match="the model's own"):
        model(X)
    assert dsv41_l2pf.status()["forward"] is None
    model.fail = False
    model(X), model(X)
    assert signature(prefetcher)["num_launched"] == 2


def test_an_error_at_the_end_propagates_but_never_masks_the_models(model, prefetcher, monkeypatch):
    end_forward = torch.ops.dsv41.end_forward

    def strict_end():
        end_forward()
        raise RuntimeError("frozen without a window")

    monkeypatch.setattr(torch.ops.dsv41, "end_forward", strict_end)
    with pytest.raises(RuntimeError, match="frozen without a window"):
        model(X)
    model.fail = True
    with pytest.raises(ArithmeticError):
        model(X)


def test_an_error_in_front_of_a_collective_switches_off_and_never_raises(model, prefetcher, monkeypatch):
    def broken(*_):
        raise RuntimeError("broken\nbacktrace")

    monkeypatch.setattr(torch.ops.dsv41, "collective_begin", broken)
    assert torch.equal(model(X), Model.forward(model, X))
    assert prefetcher.status()["reason"] == "broken"
    assert "prefetching is off: broken" in str(prefetcher.report())


def test_a_window_can_be_switched_off_and_on(model, prefetcher):
    model(X), model(X)
    prefetcher.set_window(0, num_tokens=2, budget_bytes=0)
    model(X)
    found = signature(prefetcher)
    assert [window["budget_bytes"] > 0 for window in found["windows"]] == [False, True]
    assert found["planned_bytes"] == HIDDEN * HIDDEN * 4
    assert "off" in str(prefetcher.report())
    prefetcher.set_window(0, num_tokens=2, budget_bytes=-1)
    model(X)
    assert signature(prefetcher)["planned_bytes"] == 2 * HIDDEN * HIDDEN * 4


def test_invalidate_forgets(model, prefetcher):
    model(X), model(X)
    prefetcher.invalidate()
    assert all(entry["state"] == "unlearned" for entry in prefetcher.status()["signatures"])
    model(X)
    assert signature(prefetcher)["state"] == "planned"


def test_the_budget_is_the_configured_one(model):
    prefetcher = attach(model, Config(budget_bytes=4096))
    model(X), model(X)
    found = signature(prefetcher)
    assert [window["budget_bytes"] for window in found["windows"]] == [4096, 4096]
    assert found["planned_bytes"] == 8192
