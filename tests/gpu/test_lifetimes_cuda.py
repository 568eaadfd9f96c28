"""Weights that are replaced, freed or moved under live graphs; what a graph keeps and lets go."""

import pytest
import torch
from chain import NUM_TOKENS, Chain, bare_windows, free_everything, ops, random, weight
from graph_inspect import PREFETCH, capture, read_graph

import dsv41_l2pf as l2pf

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]

MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def windows_alone(prefetcher, x, weights):
    with prefetcher.forward(NUM_TOKENS):
        bare_windows(x, weights)


def test_a_graph_whose_parameters_were_replaced_replays_what_it_captured():
    chain = Chain().learn()
    graph, out = capture(chain.forward)
    expected = chain.run()
    kept = [layer.clone() for layer in chain.layers]  # the graph's own GEMMs read the old ones: keep those mapped
    old = [layer.untyped_storage() for layer in chain.layers]
    for layer in chain.layers:
        layer.data = torch.zeros_like(layer)
    torch.cuda.empty_cache()
    for _ in range(20):
        graph.replay()
    assert torch.equal(out, expected)
    for layer, value in zip(chain.layers, kept):
        layer.copy_(value)
    assert torch.equal(chain.forward(), expected) and len(old) == len(kept)


def test_eager_forwards_do_not_read_a_storage_that_was_emptied():
    prefetcher, x = l2pf.Prefetcher(l2pf.Config(form="load")), random(NUM_TOKENS, 64)
    w = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    windows_alone(prefetcher, x, [w]), windows_alone(prefetcher, x, [w])
    torch.cuda.synchronize()
    w.untyped_storage().resize_(0)
    torch.cuda.empty_cache()
    windows_alone(prefetcher, x, [w])
    torch.cuda.synchronize()
    (signature,) = prefetcher.status()["signatures"]
    assert (signature["num_launched"], signature["latched_off"]) == (0, False)


def test_a_capture_leaves_out_windows_whose_storage_was_emptied_and_says_so():
    prefetcher, x = l2pf.Prefetcher(l2pf.Config()), random(NUM_TOKENS, 64)
    w = torch.ones(4 * MIB, dtype=torch.uint8, device="cuda")
    windows_alone(prefetcher, x, [w]), windows_alone(prefetcher, x, [w])
    torch.cuda.synchronize()
    w.untyped_storage().resize_(0)
    torch.cuda.empty_cache()
    graph, _ = capture(lambda: windows_alone(prefetcher, x, []))
    assert read_graph(graph).kernels(PREFETCH) == []
    graph.replay()
    (signature,) = prefetcher.status()["signatures"]
    assert signature["reason"].startswith("the weights of 1 of 1 windows were freed or moved")


def test_invalidate_lets_go_of_the_weights_of_a_live_graph():
    free_everything()
    before_bytes = torch.cuda.memory_allocated()
    prefetcher, x, w = l2pf.Prefetcher(l2pf.Config()), random(NUM_TOKENS, 64), weight(4096, 4096)
    windows_alone(prefetcher, x, [w]), windows_alone(prefetcher, x, [w])
    graph, _ = capture(lambda: windows_alone(prefetcher, x, []))
    num_bytes = w.nbytes
    del w
    free_everything()
    assert torch.cuda.memory_allocated() >= before_bytes + num_bytes, "the graph prefetches them"
    prefetcher.invalidate()
    free_everything()
    assert torch.cuda.memory_allocated() < before_bytes + num_bytes
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()


def test_a_graph_outlives_another_one_of_the_same_plan():
    chain = Chain().learn()
    (first, _), (second, out) = capture(chain.forward), capture(chain.forward)
    del first
    free_everything()
    for _ in range(20):
        second.replay()
    assert torch.equal(out, chain.run())


def test_a_model_on_its_way_to_the_host_and_back():
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(3))).cuda().requires_grad_(False)

    class Parallel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = model

        def forward(self, hidden_states):
            for layer in self.layers:
                hidden_states = layer(hidden_states)
                ops.emulated_all_reduce(hidden_states, 5.0)
            return hidden_states

    parallel, x = Parallel(), torch.randn(NUM_TOKENS, 256, device="cuda")
    prefetcher = l2pf.attach(parallel)
    expected = [parallel(x) for _ in range(2)][-1]
    graph, _ = capture(lambda: parallel(x))
    del graph
    parallel.cpu()
    torch.cuda.empty_cache()
    prefetcher.invalidate()
    parallel.cuda()
    assert all(torch.equal(parallel(x), expected) for _ in range(2))
    graph, out = capture(lambda: parallel(x))
    assert len(read_graph(graph).kernels(PREFETCH)) == 2
    graph.replay()
    assert torch.equal(out, expected)
    prefetcher.detach()


def test_a_prefetcher_that_dies_in_a_captured_window():
    chain = Chain(num_layers=1).learn()
    expected = chain.run()

    def forward():
        assert ops.begin_forward(chain.prefetcher.handle, chain.prefetcher.model_id(), NUM_TOKENS, "decode")
        y = torch.nn.functional.linear(chain.x, chain.layers[0])
        ops.collective_begin(y, "all_reduce")
        ops.emulated_all_reduce(y, 5.0)
        chain.prefetcher = None
        ops.collective_end(y)
        y = torch.nn.functional.linear(y, chain.head)
        ops.end_forward()
        return y

    graph, out = capture(forward)
    assert len(read_graph(graph).kernels(PREFETCH)) == 1
    for _ in range(20):
        graph.replay()
    assert torch.equal(out, expected)


def test_recapturing_often_keeps_memory_flat():
    prefetcher, x, w = l2pf.Prefetcher(l2pf.Config()), random(NUM_TOKENS, 64), weight(2048, 2048)

    def recapture(num_rounds):
        for i in range(num_rounds):
            windows_alone(prefetcher, x, [w]), windows_alone(prefetcher, x, [w])
            graph, _ = capture(lambda: windows_alone(prefetcher, x, []))
            graph.replay()
            torch.cuda.synchronize()
            del graph
            if i % 2:
                prefetcher.invalidate()
        free_everything()
        return torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]

    recapture(10)
    allocated_bytes, free_bytes = recapture(10)
    allocated_after, free_after = recapture(100)
    assert allocated_after == allocated_bytes
    assert free_bytes - free_after < 4 * MIB
