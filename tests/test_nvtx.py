"""NVTX ranges: names and nesting, over torch's functions replaced by a list; off, nothing is called."""

import gc
import weakref

import pytest
import torch
from three_linears import Model, X

import dsv41_l2pf as l2pf
from dsv41_l2pf import nvtx, prefetcher as prefetcher_module
from dsv41_l2pf.labels import short_name, window_label


@pytest.fixture
def ranges(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("pop"))
    monkeypatch.setattr(prefetcher_module, "has_nvtx", lambda: True)
    return calls


def test_a_forward_holds_a_range_a_window_with_the_names_of_its_weights(ranges):
    model = Model()
    l2pf.attach(model, l2pf.Config(nvtx=True))
    model(X)
    assert ranges == [
        "l2pf forward decode, 2 tokens",
        "l2pf window 0 (nothing planned)", "pop",
        "l2pf window 1 (nothing planned)", "pop", "pop",
    ]  # fmt: skip
    ranges.clear()
    model(X)
    assert ranges == [
        "l2pf forward decode, 2 tokens", "l2pf window 0 (b)", "pop", "l2pf window 1 (c)", "pop", "pop",
    ]  # fmt: skip


def test_a_model_that_raises_leaves_no_range_open(ranges):
    model = Model()
    l2pf.attach(model, l2pf.Config(nvtx=True))
    model.fail = True
    with pytest.raises(ArithmeticError):
        model(X)
    assert ranges.count("pop") == len(ranges) - ranges.count("pop")


def test_off_there_are_no_ranges(ranges):
    model = Model()
    prefetcher = l2pf.attach(model, l2pf.Config())
    model(X)
    assert ranges == [] and prefetcher.windows.observer is None


def test_without_nvtx_in_torch_there_are_none(ranges, monkeypatch):
    monkeypatch.setattr(prefetcher_module, "has_nvtx", lambda: False)
    assert l2pf.Prefetcher(l2pf.Config(nvtx=True)).windows.observer is None


def test_a_range_that_raises_switches_names_off_and_not_the_model(ranges, monkeypatch, caplog):
    def fail(name):
        raise RuntimeError("NVTX functions not installed")

    model = Model()
    prefetcher = l2pf.attach(model, l2pf.Config(nvtx=True))
    expected = Model.forward(model, X)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", fail)
    assert torch.equal(model(X), expected)
    assert prefetcher.windows.observer is None and prefetcher.windows.error == ""
    assert "NVTX functions not installed" in caplog.text


def test_a_dropped_prefetcher_is_not_kept_by_its_ranges(ranges):
    prefetcher = l2pf.Prefetcher(l2pf.Config(nvtx=True))
    gone = weakref.ref(prefetcher)
    gc.disable()
    try:
        del prefetcher
        assert gone() is None
    finally:
        gc.enable()


def test_has_nvtx_follows_the_build(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert nvtx.has_nvtx() is False


def test_labels():
    assert window_label(12, ["model.layers.3.mlp.down.weight"]) == "l2pf window 12 (model.layers.3.mlp.down)"
    assert short_name(["l.0.a.weight", "l.0.a.weight_scale"]) == "l.0.{a, a.weight_scale}"
    many = [f"model.layers.3.mlp.experts.{i}.down_proj.weight" for i in range(64)]
    assert short_name(many) == "model.layers.3.mlp.experts.0.down_proj and 63 more"
