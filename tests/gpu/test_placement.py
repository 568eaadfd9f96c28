"""Where a prefetch hangs in a captured graph: in line, on a branch in launch order, or on a side stream."""

import pytest
import torch
from chain import NUM_TOKENS, WIDTH, Chain, assert_all_windows_are_nodes, ops, random
from graph_inspect import (
    EMULATED_COLLECTIVE,
    INLINE_PREFETCH,
    PREFETCH,
    assert_in_line,
    assert_joined,
    assert_on_branches,
    capture,
    read_graph,
    sources,
)

import dsv41_l2pf as l2pf

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def test_one_node_a_window_in_line_behind_its_collective():
    chain = Chain(placement="in_line").learn()
    graph, _ = capture(lambda: chain.forward() + 1)
    seen = read_graph(graph)
    assert_all_windows_are_nodes(chain, seen)
    assert_in_line(seen, seen.kernels(PREFETCH), seen.kernels(EMULATED_COLLECTIVE))
    assert_joined(seen, seen.kernels(PREFETCH)[-1])
    assert {node.kind for node in seen.nodes} <= {"kernel", "memset"}  # no events, no host nodes


def test_launch_order_placement_is_a_branch_that_the_end_waits_for():
    chain = Chain(placement="launch_order").learn()
    graph, _ = capture(lambda: chain.forward() + 1)
    seen = read_graph(graph)
    nodes, collectives = seen.kernels(PREFETCH), seen.kernels(EMULATED_COLLECTIVE)
    assert len(nodes) == chain.signature()["num_launched"]
    assert_on_branches(seen, nodes, collectives)
    assert_joined(seen, nodes[-1])


@pytest.mark.parametrize(("num_between", "in_line"), [(2, False), (30, True)])
def test_the_automatic_placement_is_in_line_where_windows_are_far_apart(num_between, in_line):
    weights = [random(64, WIDTH, seed=i) for i in range(4)]
    prefetcher, x = l2pf.Prefetcher(l2pf.Config()), torch.zeros(WIDTH, device="cuda")

    def step():
        y = x + 1
        with prefetcher.forward(1):
            for weight in weights:
                all_reduce_between(y)
                ops.record_weight([weight])
                y = y + weight[0]
                for _ in range(num_between):
                    y = y * 1.5
        return y + 1

    def all_reduce_between(y):
        ops.collective_begin(y, "all_reduce")
        ops.emulated_all_reduce(y, 5.0)
        ops.collective_end(y)

    for _ in range(3):
        expected = step()
    graph, out = capture(step)
    seen = read_graph(graph)
    nodes, collectives = seen.kernels(PREFETCH), seen.kernels(EMULATED_COLLECTIVE)
    assert len(nodes) == len(weights)
    assert_in_line(seen, nodes[:1], collectives[:1])
    check = assert_in_line if in_line else assert_on_branches
    check(seen, nodes[1:], collectives[1:])
    graph.replay()
    assert torch.equal(out, expected)


def test_nothing_runs_before_the_end_of_a_slow_collective():
    """In line, the consumer waits for the prefetch alone: the kernel has to outlast the collective, empty or not."""
    x, weights = torch.zeros(1 << 16, device="cuda"), random(1 << 10, WIDTH)
    prefetcher = l2pf.Prefetcher(l2pf.Config(placement="in_line"))

    def step():  # one after the other the collectives take 600 us; if what follows the first did not wait, 300
        with prefetcher.forward(1):
            for _ in range(2):
                ops.collective_begin(x, "all_reduce")
                ops.emulated_all_reduce(x, 300.0)
                ops.collective_end(x)
                ops.record_weight([weights])
                y = x + weights[0, 0]
            return y

    for _ in range(3):
        step()
    graph, _ = capture(step)
    seen = read_graph(graph)
    assert_in_line(seen, seen.kernels(PREFETCH), seen.kernels(EMULATED_COLLECTIVE))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for budget_bytes in (0, 1 << 20):
        for index in range(2):
            prefetcher.set_window(index, num_tokens=1, budget_bytes=budget_bytes)
        for _ in range(3):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            assert 1e3 * begin.elapsed_time(end) > 600, budget_bytes


def test_side_stream_placement_forks_before_the_collective():
    chain = Chain(placement="side_stream").learn()
    graph, _ = capture(lambda: chain.forward() + 1)
    seen = read_graph(graph)
    nodes, collectives = seen.kernels(PREFETCH), seen.kernels(EMULATED_COLLECTIVE)
    assert len(nodes) == len(collectives) == chain.signature()["num_launched"]
    previous = set()
    for node, collective in zip(nodes, collectives):
        before = sources(seen, collective, launch_order=False)
        assert before and sources(seen, node, launch_order=True) == set()
        assert sources(seen, node, launch_order=False) == before | previous
        previous = {node.index}
    assert_joined(seen, nodes[-1])


@pytest.mark.parametrize("joined", [True, False])
def test_a_bare_prefetch_is_one_inline_node(joined):
    chain = Chain(num_layers=1)
    (layer,) = chain.layers

    def step():
        y = torch.nn.functional.linear(chain.x, layer)
        ops.l2_prefetch(y, [chain.head], 1 << 20)
        y = torch.nn.functional.linear(y, layer)
        if joined:
            ops.l2_join(y)
        return y + 1

    step()
    ops.l2_join(chain.x)
    graph, out = capture(step)
    seen = read_graph(graph)
    (node,) = seen.kernels(PREFETCH)
    assert INLINE_PREFETCH in node.name
    assert len(sources(seen, node, launch_order=True)) == 1
    assert sources(seen, node, launch_order=False) == set()
    assert (seen.edges_from(node) != []) is joined
    graph.replay()
    expected = torch.nn.functional.linear(torch.nn.functional.linear(chain.x, layer), layer) + 1
    assert torch.equal(out, expected)


def test_many_segments_of_a_bare_prefetch_take_chained_inline_nodes():
    x, rows = random(NUM_TOKENS, WIDTH), random(200, WIDTH)
    graph, _ = capture(lambda: (x.add_(0), ops.l2_prefetch(x, list(rows)), ops.l2_join(x)))
    seen = read_graph(graph)
    nodes = seen.kernels(INLINE_PREFETCH)
    assert len(nodes) == 3  # 96 segments a node
    for earlier, later in zip(nodes, nodes[1:]):
        assert earlier.index in sources(seen, later, launch_order=False)
    graph.replay()
