"""Pauses and invalidation beside captured graphs."""

import pytest
import torch
from chain import Chain
from graph_inspect import PREFETCH, capture, read_graph

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def test_a_pause_and_a_resume_leave_outputs_and_budgets_as_they_were():
    chain = Chain().learn()
    graph, out = capture(chain.forward)
    expected, before = chain.run(), chain.signature()
    for _ in range(3):
        chain.prefetcher.pause()
        assert [window["budget_bytes"] for window in chain.signature()["windows"]] == [0] * len(chain.layers)
        for _ in range(5):
            graph.replay()
        assert torch.equal(out, expected) and torch.equal(chain.forward(), expected)
        chain.prefetcher.resume()
        for _ in range(5):
            graph.replay()
        assert torch.equal(out, expected)
        assert chain.signature() == before


def test_a_graph_captured_while_paused_has_no_prefetch():
    chain = Chain().learn()
    chain.prefetcher.pause()
    graph, out = capture(chain.forward)
    assert read_graph(graph).kernels(PREFETCH) == []
    chain.prefetcher.resume()
    assert chain.signature()["state"] == "planned"
    assert len(read_graph(capture(chain.forward)[0]).kernels(PREFETCH)) == len(chain.layers)
    graph.replay()
    assert torch.equal(out, chain.run())


@pytest.mark.parametrize("call", ["pause", "resume"])
def test_neither_may_be_called_inside_a_capture(call):
    chain = Chain().learn()

    def forward():
        with pytest.raises((RuntimeError, ValueError), match="expected no capture in progress, got a capturing stream"):
            getattr(chain.prefetcher, call)()
        return chain.forward()

    graph, out = capture(forward)
    assert not chain.prefetcher.is_paused
    assert len(read_graph(graph).kernels(PREFETCH)) == len(chain.layers)
    graph.replay()
    assert torch.equal(out, chain.run())


def test_invalidate_inside_a_capture_leaves_the_graphs_as_they_are():
    chain = Chain().learn()

    def forward():
        out = chain.forward()
        chain.prefetcher.invalidate()
        return out

    graph, out = capture(forward)
    assert chain.signature()["state"] == "unlearned"
    graph.replay()
    assert torch.equal(out, chain.run())
