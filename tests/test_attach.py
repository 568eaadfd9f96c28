"""attach: what is hooked, what counts as a forward, and how the hook comes off again."""

import copy
import functools
import gc
import inspect
import weakref

import pytest
import torch
from three_linears import HIDDEN, Model, X

import dsv41_l2pf
from dsv41_l2pf import Config, Prefetcher, attach
from dsv41_l2pf.tokens import token_counter


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def prefetcher(model):
    prefetcher = attach(model, Config())
    yield prefetcher
    prefetcher.detach()


def test_detach_restores_the_class_forward(model):
    prefetcher = attach(model, Config())
    assert "forward" in model.__dict__
    prefetcher.detach()
    prefetcher.detach()
    assert "forward" not in model.__dict__
    assert prefetcher.status()["attached"] is False


def test_detach_restores_an_instance_forward(model):
    own = functools.partial(Model.forward, model)
    model.forward = own
    attach(model, Config()).detach()
    assert model.forward is own


def test_detach_under_somebody_elses_wrapper_passes_on(model):
    prefetcher = attach(model, Config())
    hook, calls = model.forward, []

    @functools.wraps(hook)
    def wrapper(*args):
        calls.append(args)
        return hook(*args)

    model.forward = wrapper
    prefetcher.detach()
    assert model.forward is wrapper
    assert torch.equal(model(X), Model.forward(model, X))
    assert len(calls) == 1 and prefetcher.status()["signatures"] == []
    attach(model, Config()).detach()


def test_attaching_twice_is_an_error(model, prefetcher):
    with pytest.raises(ValueError, match="got a Model that is: detach"):
        attach(model, Config())
    with pytest.raises(ValueError, match="expected a prefetcher without a model"):
        prefetcher.attach(Model())


def test_a_mode_that_is_not_decode_like_is_an_error(model):
    with pytest.raises(ValueError, match="target_verify.*got 'prefill'"):
        attach(model, Config(), mode="prefill")
    attach(model, Config(), mode="decode/lora").detach()


@pytest.mark.parametrize("by_environment", [True, False])
def test_the_gate_off_installs_nothing(model, monkeypatch, by_environment):
    monkeypatch.setenv("DSV41_L2_PREFETCH", "0")
    before = len(dsv41_l2pf.status()["prefetchers"])
    prefetcher = attach(model) if by_environment else attach(model, Config(enabled=False))
    assert "forward" not in model.__dict__
    assert len(dsv41_l2pf.status()["prefetchers"]) == before
    status = prefetcher.status()
    why = "DSV41_L2_PREFETCH=0" if by_environment else "Config(enabled=False)"
    assert (status["enabled"], status["attached"], status["reason"]) == (False, False, f"off: {why}")
    assert why in str(prefetcher.report())
    with prefetcher.forward(1) as counts, prefetcher.collective(X, "all_reduce"):
        assert counts is False
    assert prefetcher.wrap_collective(len, "all_reduce") is len
    prefetcher.invalidate()
    prefetcher.detach()


def test_the_signature_of_forward_stays_visible(model, prefetcher):
    assert list(inspect.signature(model.forward).parameters) == ["hidden_states"]


def test_a_dropped_prefetcher_is_destroyed_with_its_model():
    gc.collect()
    before = len(dsv41_l2pf.status()["prefetchers"])
    model = Model()
    prefetcher = attach(model, Config())
    model(X)
    assert len(dsv41_l2pf.status()["prefetchers"]) == before + 1
    del prefetcher
    gc.collect()
    assert len(dsv41_l2pf.status()["prefetchers"]) == before + 1
    del model
    gc.collect()
    assert len(dsv41_l2pf.status()["prefetchers"]) == before


def test_a_prefetcher_does_not_keep_a_dropped_model_alive():
    model = Model()
    prefetcher = attach(model, Config())
    model(X), model(X)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert "0x" in str(prefetcher.report())


def test_model_numbers_are_never_used_again():
    prefetcher, seen = Prefetcher(Config()), set()
    for _ in range(50):
        seen.add(prefetcher.model_id(torch.nn.Identity()))
        gc.collect(0)
    assert len(seen) == 50


def test_a_deep_copy_is_not_attached_and_runs_its_own_weights(model, prefetcher):
    copied = copy.deepcopy(model)
    copied.c.weight.zero_()
    assert torch.equal(copied(X), torch.zeros(2, HIDDEN))
    assert prefetcher.status()["signatures"] == []
    attach(copied, Config()).detach()
    model(X)
    assert len(prefetcher.status()["signatures"]) == 1


@pytest.mark.parametrize(
    ("args", "kwargs", "num_tokens"),
    [
        ((torch.ones(2, 3, HIDDEN),), {}, 6),
        ((), {"hidden_states": torch.ones(7, HIDDEN)}, 7),
        ((torch.zeros(4, 2, dtype=torch.int64),), {}, 8),
        ((None, torch.zeros(5, dtype=torch.int32)), {"hidden_states": torch.ones(3, HIDDEN)}, 3),
        ((None, torch.zeros(5, dtype=torch.int32)), {"scale": 2}, 5),
        ((), {"positions": torch.zeros(9), "input_ids": torch.zeros(1, 3, dtype=torch.int64)}, 3),
        ((), {"inputs_embeds": torch.ones(1, 4, 8), "hidden_states": torch.ones(1, 5, 8)}, 4),
        ((torch.tensor(3),), {}, 1),
        ((), {}, 0),
        ((torch.ones(0, HIDDEN),), {}, 0),
    ],
)
def test_number_of_tokens(args, kwargs, num_tokens):
    def forward(hidden_states=None, positions=None, input_ids=None, inputs_embeds=None, scale=1):
        raise AssertionError("only its signature is looked at")

    assert token_counter(forward)(args, kwargs) == num_tokens
