"""Traces of replayed graphs, and NVTX ranges in a capture."""

import pytest
import torch
from chain import DELAY_US, WIDTH, random
from graph_inspect import EMULATED_COLLECTIVE, PREFETCH, assert_behind, capture, read_graph

import dsv41_l2pf as l2pf
from dsv41_l2pf.demo.small_model import SmallModel
from dsv41_l2pf.trace import trace_eager_step, trace_graph_step
from dsv41_l2pf.trace.clocks import EventClock
from dsv41_l2pf.trace.recorder import StepRecorder

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]

NUM_LAYERS = 3
NUM_COLLECTIVES = 2 * NUM_LAYERS


@pytest.fixture
def learned():
    """A model with its prefetcher, and a step of it."""
    with torch.no_grad():
        model = SmallModel(WIDTH, NUM_LAYERS, DELAY_US, device="cuda", dtype=torch.bfloat16)
        x = random(4, WIDTH)
        prefetcher = l2pf.attach(model)
        model(x), model(x)
        yield prefetcher, lambda: model(x)
        prefetcher.detach()


@pytest.mark.parametrize("trace", [trace_graph_step, trace_eager_step])
def test_every_collective_has_its_time_and_every_window_its_name(learned, trace):
    slices = trace(*learned)
    collectives = [slice for slice in slices if slice.track == "collectives"]
    windows = [slice for slice in slices if slice.track == "windows"]
    assert [slice.name for slice in collectives] == [f"all_reduce {i}" for i in range(NUM_COLLECTIVES)]
    # The emulated peer answers after DELAY_US.
    assert all(0.9 * DELAY_US < slice.duration_us < 1e5 for slice in collectives)
    assert windows[0].name == "l2pf window 0 (layers.0.mlp.{up, down})"
    assert windows[-1].name == f"l2pf window {NUM_COLLECTIVES - 1} (head)"
    assert [slice.begin_us for slice in windows] == [slice.begin_us for slice in collectives]
    forward = next(slice for slice in slices if slice.track == "forward")
    assert all(0 <= slice.begin_us <= slice.end_us <= forward.end_us + 1e-3 for slice in slices)


def test_the_events_do_not_come_between_a_collective_and_its_prefetch_node(learned):
    prefetcher, step = learned
    prefetcher.windows.observer = recorder = StepRecorder(EventClock())
    graph, _ = capture(step)
    prefetcher.windows.observer = None
    seen = read_graph(graph)
    assert_behind(seen, seen.kernels(PREFETCH), seen.kernels(EMULATED_COLLECTIVE))
    assert sum(node.kind == "event_record" for node in seen.nodes) == 2 + 2 * NUM_COLLECTIVES
    graph.replay()
    torch.cuda.synchronize()
    times_us = recorder.clock.times_us()
    assert len(times_us) == 2 + 2 * NUM_COLLECTIVES and times_us == sorted(times_us)


def test_nvtx_names_change_no_result_and_no_node():
    with torch.no_grad():
        model = SmallModel(WIDTH, NUM_LAYERS, DELAY_US, device="cuda", dtype=torch.bfloat16)
        x = random(4, WIDTH)
        expected = model(x)
        prefetcher = l2pf.attach(model, l2pf.Config(nvtx=True))
        assert prefetcher.windows.observer is not None
        model(x), model(x)
        graph, out = capture(lambda: model(x))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)
        seen = read_graph(graph)
        assert_behind(seen, seen.kernels(PREFETCH), seen.kernels(EMULATED_COLLECTIVE))
        assert prefetcher.windows.observer is not None, "a range raised"
        prefetcher.detach()
