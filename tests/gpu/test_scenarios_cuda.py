"""Public bug reports that need a GPU and have no home elsewhere; docs/scenarios.md has the table of all."""

import threading

import pytest
import torch
from chain import NUM_TOKENS, Chain, all_reduce, ops, random
from graph_inspect import PREFETCH, capture, read_graph

import dsv41_l2pf as l2pf

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]

SLEEP_CYCLES = 2_000_000


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def test_segments_captured_at_once_behind_a_slow_kernel_never_meet_each_others_prefetch():
    """Report 4: what was still running on the side stream when the next segment's capture began."""
    chain = Chain(num_layers=2).learn()
    for round_index in range(100):
        graphs = [torch.cuda.CUDAGraph() for _ in chain.layers]
        torch.cuda._sleep(SLEEP_CYCLES)
        ops.l2_prefetch(chain.x, [chain.head])  # outstanding, behind the slow kernel
        x = chain.x
        with chain.prefetcher.forward(NUM_TOKENS):
            for graph, layer in zip(graphs, chain.layers):
                with torch.cuda.graph(graph):
                    x = torch.nn.functional.linear(x, layer)
                    all_reduce(x)
        ops.l2_join(chain.x)
        for graph in graphs:
            graph.replay()
        assert torch.equal(x, chain.run(head=False)), round_index
    assert not any(device["outstanding"] for device in l2pf.status()["devices"])


def test_two_threads_capture_at_once():
    """Report 6: one side stream cached for both."""
    chains = [Chain(num_layers=3).learn() for _ in range(2)]
    both, results, errors = threading.Barrier(2, timeout=60), [None, None], []
    one_at_a_time = threading.Lock()  # emulated collectives, on a device

    def run(index):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        try:
            # Not torch.cuda.graph: it synchronises the device, and its stream is every thread's.
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                with one_at_a_time:
                    chains[index].run()  # a thread has a cuBLAS handle of its own
                    torch.cuda.current_stream().synchronize()
                both.wait()
                graph.capture_begin(capture_error_mode="thread_local")
                both.wait()
                out = chains[index].forward()
                both.wait()
                graph.capture_end()
            graph.instantiate()
            results[index] = graph, out
        except Exception as error:  # noqa: BLE001  shown by the main thread
            errors.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert errors == []
    for chain, (graph, out) in zip(chains, results):
        assert len(read_graph(graph).kernels(PREFETCH)) == 3
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, chain.run())


def test_a_capture_on_any_device_while_the_first_is_current():
    """Report 23. With one GPU it is the form that is left: a capture under an explicit device."""
    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index):
            x, w = torch.ones(NUM_TOKENS, 64, device="cuda"), torch.ones(64, 64, device="cuda")
            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph(keep_graph=True)
        prefetcher = l2pf.Prefetcher(l2pf.Config())

        def forward():
            with prefetcher.forward(NUM_TOKENS):
                all_reduce(x, 1.0)
                ops.record_weight([w])

        with torch.cuda.stream(stream):
            forward(), forward()
        torch.cuda.synchronize(index)
        with torch.cuda.graph(graph, stream=stream):
            forward()
        graph.instantiate()
        assert torch.cuda.current_device() == 0
        assert len(read_graph(graph).kernels(PREFETCH)) == 1
        graph.replay()
        torch.cuda.synchronize(index)


def test_a_refused_call_inside_a_capture_leaves_the_capture_whole():
    """Report 21: an error that was swallowed spoiled the capture it happened in."""
    chain = Chain().learn()

    def forward():
        for bad in (
            lambda: ops.l2_prefetch(chain.x, [chain.head], -2),
            lambda: ops.l2_prefetch(chain.x, [torch.ones(4)]),
            lambda: ops.collective_begin(chain.x, "gossip"),
            lambda: ops.pause(chain.prefetcher.handle),
            lambda: chain.prefetcher.set_window(0, num_tokens=NUM_TOKENS, budget_bytes=0),
        ):
            with pytest.raises((ValueError, RuntimeError)):
                bad()
        return chain.forward()

    graph, out = capture(forward)
    assert len(read_graph(graph).kernels(PREFETCH)) == len(chain.layers)
    graph.replay()
    assert torch.equal(out, chain.run())
    torch.cuda.synchronize()  # raises what an earlier call would have left behind
    assert torch.equal(random(2, 2), random(2, 2))
