"""Captured forwards: one node a window, the right outputs, and what happens when things go wrong."""

import pytest
import torch
from chain import NUM_TOKENS, WIDTH, Chain, all_reduce, assert_all_windows_are_nodes, ops, random
from graph_inspect import EMULATED_COLLECTIVE, PREFETCH, assert_behind, capture, read_graph, sources

import dsv41_l2pf as l2pf

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def captured(chain: Chain, **kwargs):
    graph, out = capture(chain.forward, **kwargs)
    return read_graph(graph), graph, out


def test_replay_equals_eager_bit_for_bit():
    chain = Chain(num_layers=6).learn()
    seen, graph, out = captured(chain)
    assert_all_windows_are_nodes(chain, seen)
    for i in range(50):
        if i % 10 == 0:
            chain.x.copy_(random(NUM_TOKENS, WIDTH, seed=1000 + i))
            expected = chain.run()  # no forward is open, so this prefetches nothing
        graph.replay()
        assert torch.equal(out, expected), i


@pytest.mark.parametrize("form", ["bulk", "lines", "load", "load_keep"])
def test_every_form_replays_to_the_same_output(form):
    chain = Chain(form=form).learn()
    expected = chain.run()
    seen, graph, out = captured(chain)
    assert_all_windows_are_nodes(chain, seen)
    assert {window["form"] for window in chain.signature()["windows"]} == {form}
    for _ in range(5):
        graph.replay()
        assert torch.equal(out, expected)


def test_frozen_eager_forwards_equal_the_replay():
    chain = Chain().learn()
    _, graph, out = captured(chain)
    graph.replay()
    assert torch.equal(chain.forward(), out)
    assert chain.signature()["num_launched"] == len(chain.layers)


def test_a_forward_that_ends_with_a_prefetch_ends_its_capture_cleanly():
    chain = Chain().learn()
    graph, out = capture(lambda: chain.forward(head=False))
    seen = read_graph(graph)
    assert_all_windows_are_nodes(chain, seen)
    last = seen.kernels(PREFETCH)[-1]
    assert seen.edges_from(last) == []
    graph.replay()
    assert torch.equal(out, chain.run(head=False))


def test_a_capture_without_learning_has_no_node_and_says_why():
    chain = Chain()
    seen, graph, out = captured(chain)
    assert seen.kernels(PREFETCH) == []
    signature = chain.signature()
    assert (signature["state"], signature["num_windows"], signature["num_launched"]) == ("frozen", 0, 0)
    assert "before any eager forward" in signature["reason"]
    graph.replay()
    assert torch.equal(out, chain.run())


@pytest.mark.parametrize(("num_learned", "num_captured"), [(4, 3), (3, 4)])
def test_another_number_of_collectives_is_a_mismatch(num_learned, num_captured):
    chain = Chain()
    for _ in range(2):
        chain.forward(num_learned)
    graph, out = capture(lambda: chain.forward(num_captured))
    signature = chain.signature()
    assert signature["reason"] == f"mismatch: captured {num_captured} collectives, learned {num_learned}"
    num_nodes = len(read_graph(graph).kernels(PREFETCH))
    assert num_nodes == signature["num_launched"] == min(num_learned, num_captured)
    graph.replay()
    assert torch.equal(out, chain.run(num_captured))


def test_a_forward_inside_a_captured_forward_is_ignored():
    chain = Chain().learn()
    other = l2pf.Prefetcher(l2pf.Config())

    def nested():
        with chain.prefetcher.forward(NUM_TOKENS), other.forward(NUM_TOKENS) as counts:
            assert counts is False
            return chain.run()

    graph, _ = capture(nested)
    assert_all_windows_are_nodes(chain, read_graph(graph))
    assert other.status()["signatures"] == []


def test_a_capture_on_a_given_stream():
    chain = Chain().learn()
    seen, graph, out = captured(chain, stream=torch.cuda.Stream())
    assert_all_windows_are_nodes(chain, seen)
    graph.replay()
    assert torch.equal(out, chain.run())


def test_collectives_on_another_stream_of_the_same_capture():
    chain = Chain().learn()
    other = torch.cuda.Stream()

    def forward():
        x = chain.x
        with chain.prefetcher.forward(NUM_TOKENS):
            for layer in chain.layers:
                x = torch.nn.functional.linear(x, layer)
                other.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(other):
                    all_reduce(x)
                torch.cuda.current_stream().wait_stream(other)
            return torch.nn.functional.linear(x, chain.head)

    graph, out = capture(forward)
    seen = read_graph(graph)
    nodes, collectives = seen.kernels(PREFETCH), seen.kernels(EMULATED_COLLECTIVE)
    assert len(nodes) == len(chain.layers)
    for node, collective in zip(nodes, collectives):
        assert sources(seen, node, launch_order=True) == {collective.index}
    graph.replay()
    assert torch.equal(out, chain.run())


def test_two_captures_in_one_forward_each_keep_their_own_nodes():
    chain = Chain().learn()
    first, second = (torch.cuda.CUDAGraph(keep_graph=True) for _ in range(2))
    middle, x = len(chain.layers) // 2, chain.x
    with chain.prefetcher.forward(NUM_TOKENS):
        for graph, layers in ((first, chain.layers[:middle]), (second, chain.layers[middle:])):
            with torch.cuda.graph(graph):
                for layer in layers:
                    x = torch.nn.functional.linear(x, layer)
                    all_reduce(x)
    for graph, num_windows in ((first, middle), (second, len(chain.layers) - middle)):
        graph.instantiate()
        seen = read_graph(graph)
        assert_behind(seen, seen.kernels(PREFETCH), seen.kernels(EMULATED_COLLECTIVE))
        assert len(seen.kernels(PREFETCH)) == num_windows
        graph.replay()
    assert torch.equal(x, chain.run(head=False))


def test_an_exception_in_a_captured_forward_leaves_later_captures_working():
    chain = Chain().learn()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with pytest.raises(ZeroDivisionError), torch.cuda.graph(graph), chain.prefetcher.forward(NUM_TOKENS):
        chain.run(2)
        raise ZeroDivisionError
    assert l2pf.status()["forward"] is None
    assert not any(device["outstanding"] for device in l2pf.status()["devices"])
    assert (chain.signature()["state"], chain.signature()["num_captures"]) == ("planned", 0), "as if it had not begun"
    del graph
    seen, graph, out = captured(chain)
    assert_all_windows_are_nodes(chain, seen)
    graph.replay()
    assert torch.equal(out, chain.run())


def test_an_eager_prefetch_stays_outstanding_across_a_capture():
    chain = Chain().learn()
    ops.l2_prefetch(chain.x, [chain.head])
    seen, graph, out = captured(chain)
    # Waiting for it inside would tie the graph to work from before its capture, which CUDA refuses.
    assert_all_windows_are_nodes(chain, seen)
    assert any(device["outstanding"] for device in l2pf.status()["devices"])
    ops.l2_join(chain.x)
    graph.replay()
    assert torch.equal(out, chain.run())


def test_strict_raises_after_a_captured_forward_without_a_window():
    chain = Chain(strict=True)
    with pytest.raises(RuntimeError, match="has no window: captured before any eager forward"):
        capture(chain.forward)
    assert l2pf.status()["forward"] is None
    capture(chain.run)  # the failed capture is over
