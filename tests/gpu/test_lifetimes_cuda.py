"""Weights that are replaced, freed, moved or unmapped under live graphs; pauses; what a graph keeps and lets go."""

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from chain import NUM_TOKENS, Chain, bare_windows, free_everything, ops, random, weight
from graph_inspect import PREFETCH, capture, read_graph

import dsv41_l2pf as l2pf

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def run_python(*args):
    paths = os.pathsep.join(map(str, (ROOT, HERE.parent, HERE)))
    environ = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run([sys.executable, *args], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=240)


@contextmanager
def running(programs):
    """The futures of `run_python` for {key: its arguments}, all started now, some at a time."""
    with ThreadPoolExecutor(8) as pool:
        yield {key: pool.submit(run_python, *arguments) for key, arguments in programs.items()}


FORMS = ("load", "bulk", "lines")
SCENARIOS = ("sleep_and_wake", "invalidated_before", "invalidated_after", "window_switched_off", "last_byte")


@pytest.fixture(scope="module")
def unmapped():
    """Runs of every scenario in processes of their own, for an illegal address ends a process's use of the GPU."""
    script = str(HERE / "unmapped_weights.py")
    with running({case: (script, *case) for case in itertools.product(SCENARIOS, FORMS)}) as results:
        yield results


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_touches_unmapped_memory(unmapped, scenario, form):
    result = unmapped[scenario, form].result()
    assert (result.returncode, result.stdout) == (0, "fine\n"), result.stderr[-3000:]


def windows_alone(prefetcher, x, weights):
    with prefetcher.forward(NUM_TOKENS):
        bare_windows(x, weights)


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


AT_EXIT = """
import torch
from chain import Chain
from graph_inspect import capture
chain = Chain().learn()
graphs = [capture(chain.forward)[0] for _ in range(3)]
[graph.replay() for graph in graphs]
{state}
print("end of the program", flush=True)
"""


STATES = (
    "",
    "torch.cuda.synchronize(); chain.prefetcher.pause()",
    "chain.prefetcher.invalidate()",
    "del chain",
    "graphs.append(graphs)",
    "torch.ops.dsv41.l2_prefetch(chain.x, chain.layers)",
)


@pytest.fixture(scope="module")
def exits():
    with running({state: ("-c", AT_EXIT.format(state=state)) for state in STATES}) as results:
        yield results


@pytest.mark.parametrize("state", STATES)
def test_the_interpreter_exits_cleanly_with_live_graphs(exits, state):
    result = exits[state].result()
    assert (result.returncode, result.stdout) == (0, "end of the program\n"), result.stderr[-3000:]
