"""The operators that compiled graphs call: their schemas, and that they leave a forward's own windows alone."""

import pytest
import torch
from compiled_chain import Chain, emulated, tokens
from torch.library import opcheck

import dsv41_l2pf as l2pf

ops = torch.ops.dsv41


def outstanding():
    (cpu,) = [device for device in l2pf.status()["devices"] if device["device"] == "cpu"]
    assert cpu["error"] == ""
    return cpu["outstanding"]


@pytest.fixture
def x():
    return torch.ones(4, 64)


@pytest.fixture
def w():
    return torch.ones(64, 64)


@pytest.fixture
def forward():
    with l2pf.Prefetcher(l2pf.Config()).forward(4):
        yield


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside a forward"])
@pytest.mark.parametrize("name", ["window_begin", "window_end", "join_windows"])
def test_opcheck(name, inside, x, w, request):
    if inside:
        request.getfixturevalue("forward")
    opcheck(getattr(ops, name).default, (x, [w, w.t()], 1024) if name == "window_begin" else (x,))
    ops.l2_join(x)


def test_a_window_is_outstanding_until_the_join(x, w):
    ops.window_begin(x, [w])
    assert outstanding()
    ops.window_end(x)
    assert outstanding()
    ops.join_windows(x)
    assert not outstanding()


def test_inside_a_forward_the_forward_decides(x, w, forward):
    ops.window_begin(x, [w])
    assert not outstanding()
    ops.l2_prefetch(x, [w])
    ops.join_windows(x)
    assert outstanding()
    ops.l2_join(x)
    assert not outstanding()


def test_nothing_is_outstanding_behind_a_compiled_graph(x):
    torch.compile(Chain(emulated), backend=l2pf.compile_backend(inner="aot_eager"), fullgraph=True)(tokens())
    assert not outstanding()
