"""Compiled models on CUDA: in every mode the windows are nodes where they belong, and nothing else changes."""

import gc
import re
from collections import Counter

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from chain import DELAY_US, WIDTH, ops, random, weight
from gloo import join_group
from graph_inspect import EMULATED_COLLECTIVE, PREFETCH, assert_behind, capture, read_graph
from quantised import quantise_linears
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

import dsv41_l2pf as l2pf
from dsv41_l2pf.compile import clear_reports, reports

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]

NUM_BLOCKS, NUM_TOKENS = 4, 16


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    clear_reports()
    counters.clear()
    with torch.no_grad(), torch.compiler.config.patch(force_disable_caches=True):
        yield
    torch.compiler.reset()


def emulated(x):
    ops.emulated_all_reduce(x, DELAY_US)
    return x


class Block(torch.nn.Module):
    def __init__(self, collective, seed):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=torch.bfloat16)
        self.down = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=torch.bfloat16)
        self.up.weight.copy_(weight(WIDTH, WIDTH, seed=seed))
        self.down.weight.copy_(weight(WIDTH, WIDTH, seed=seed + 1000))
        self.collective = collective

    def forward(self, x):
        return x + self.collective(self.down(torch.relu(self.up(x))))


class Model(torch.nn.Module):
    def __init__(self, collective=emulated):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(collective, seed=i) for i in range(NUM_BLOCKS))
        self.head = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=torch.bfloat16)
        self.head.weight.copy_(weight(WIDTH, WIDTH, seed=77))
        self.requires_grad_(False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


WINDOWS = [(f"blocks.{i}.up.weight", f"blocks.{i}.down.weight") for i in range(1, NUM_BLOCKS)] + [("head.weight",)]


def tokens(seed=9):
    return random(NUM_TOKENS, WIDTH, seed=seed)


def outputs(model, backend, **options):
    """What five calls of a freshly compiled model return: warm-up, recording and replays of a CUDA graph tree."""
    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, **options)
    return [compiled(tokens(seed)).clone() for seed in (9, 9, 9, 10, 11)]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_outputs_have_the_same_bits_in_every_mode(mode):
    model = Model()
    off = outputs(model, "inductor", mode=mode)
    on = outputs(model, "dsv41", mode=mode)
    assert [window.weights for window in reports()[0].windows] == WINDOWS
    assert counters["inductor"]["cudagraph_skips"] == 0
    for got, expected in zip(on, off):
        if mode == "max-autotune-no-cudagraphs":  # it may choose other kernels each time
            torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
        else:
            assert torch.equal(got, expected)


def assert_windows_are_nodes(seen):
    nodes = seen.kernels(PREFETCH)
    assert len(nodes) == NUM_BLOCKS
    assert_behind(seen, nodes, seen.kernels(EMULATED_COLLECTIVE))


def kernel_names(seen):
    return Counter(node.name for node in seen.kernels("") if PREFETCH not in node.name)


def test_windows_are_nodes_of_a_manual_capture():
    model, x = Model(), tokens()
    captured = {}
    for backend in ("inductor", "dsv41"):
        torch.compiler.reset()
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        compiled(x), compiled(x)
        captured[backend] = capture(lambda: compiled(x))
    (off_graph, off_out), (graph, out) = captured["inductor"], captured["dsv41"]
    seen = read_graph(graph)
    assert_windows_are_nodes(seen)
    assert kernel_names(seen) == kernel_names(read_graph(off_graph))
    for seed in range(20):
        x.copy_(tokens(seed))
        graph.replay()
        off_graph.replay()
        assert torch.equal(out, off_out)


@pytest.fixture
def kept_graphs(monkeypatch):
    """The CUDA graphs that are made during a test, readable."""
    made, original = [], torch.cuda.CUDAGraph

    def keep(*_args, **_kwargs):
        made.append(original(keep_graph=True))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", keep)
    return made


def test_windows_are_nodes_of_a_cuda_graph_tree(kept_graphs):
    outputs(Model(), "dsv41", mode="reduce-overhead")
    graphs = [read_graph(graph) for graph in kept_graphs]
    (seen,) = [graph for graph in graphs if graph.kernels(EMULATED_COLLECTIVE)]
    assert_windows_are_nodes(seen)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_the_peak_of_memory_is_the_same(mode):
    model, x = Model(), tokens()
    peaks = []
    for backend in ("inductor", "dsv41"):
        torch.compiler.reset()
        torch.cuda.empty_cache()
        compiled = torch.compile(model, backend=backend, mode=mode)
        for _ in range(4):
            compiled(x)
        torch.cuda.synchronize()
        gc.collect()  # what the compiler left in reference cycles
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        compiled(x)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[0] == peaks[1]


def test_identical_operators_stay_apart():
    class Repeated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block(emulated, seed=1)

        def forward(self, x):
            for _ in range(NUM_BLOCKS + 1):
                x = self.block(x)
            return x

    model, x = Repeated(), tokens()
    compiled = torch.compile(model, backend="dsv41", fullgraph=True)
    compiled(x), compiled(x)
    graph, _ = capture(lambda: compiled(x))
    assert len(read_graph(graph).kernels(PREFETCH)) == NUM_BLOCKS  # behind the last collective nothing is read


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "float8"])
def test_quantised_weights(dtype):
    model = quantise_linears(Model(), dtype)
    off, on = (outputs(model, backend, mode="reduce-overhead") for backend in ("inductor", "dsv41"))
    assert all(torch.equal(got, expected) for got, expected in zip(on, off))
    assert counters["inductor"]["cudagraph_skips"] == 0
    assert reports()[0].windows[-1].weights == ("head.weight.payload", "head.weight.scale")


def test_an_attached_cuda_graph_tree_learns_warm_and_replays_with_windows(kept_graphs):
    model = Model()
    expected = outputs(model, "inductor", mode="reduce-overhead")
    torch.compiler.reset()
    kept_graphs.clear()
    compiled = torch.compile(model, mode="reduce-overhead")
    prefetcher = l2pf.attach(compiled)
    got = [compiled(tokens(seed)).clone() for seed in (9, 9, 9, 10, 11)]
    assert all(map(torch.equal, got, expected))
    assert counters["inductor"]["cudagraph_skips"] == 0
    (signature,) = prefetcher.status()["signatures"]
    assert (signature["state"], signature["num_windows"], signature["reason"]) == ("frozen", NUM_BLOCKS, "")
    recorded = [graph for graph in map(read_graph, kept_graphs) if graph.kernels(EMULATED_COLLECTIVE)]
    assert [len(graph.kernels(PREFETCH)) for graph in recorded] == [NUM_BLOCKS]
    prefetcher.detach()


def test_an_attached_model_of_compiled_regions_is_captured_with_windows_across_them():
    """Behind the last collective of a region come weights of the next one: only the learner sees those."""
    model, x = Model(), tokens()
    for block in model.blocks:
        block.compile(backend="dsv41", fullgraph=True)
    model(x)
    off_graph, off_out = capture(lambda: model(x))
    prefetcher = l2pf.attach(model)
    model(x), model(x)
    graph, out = capture(lambda: model(x))
    assert_windows_are_nodes(read_graph(graph))
    (signature,) = prefetcher.status()["signatures"]
    assert (signature["state"], signature["num_windows"]) == ("frozen", NUM_BLOCKS)
    graph.replay()
    off_graph.replay()
    assert torch.equal(out, off_out)
    prefetcher.detach()


@pytest.fixture(scope="module")
def nccl(tmp_path_factory):
    """One NCCL rank: its collectives cost no kernel, but they are the operators that real models have."""
    join_group(tmp_path_factory.mktemp("group"), backend="nccl")
    yield
    dist.destroy_process_group()


def all_reduce(x):
    return functional.all_reduce(x, "sum", dist.group.WORLD)


_OPERATORS = re.compile(r"torch\.ops\.(?:dsv41|_c10d_functional)\.(\w+?)_?\.default\(")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reorder_for_compute_comm_overlap": True},
        {"aten_distributed_optimizations.enable_overlap_scheduling": True},
    ],
    ids=["plain", "reordering", "overlap scheduling"],
)
def test_functional_collectives_stay_in_their_windows(nccl, options):
    model, x = Model(all_reduce), tokens()
    compiled = torch.compile(model, backend="dsv41", fullgraph=True, options=options)
    output, (code,) = run_and_get_code(compiled, x)
    assert _OPERATORS.findall(code) == ["window_begin", "all_reduce", "wait_tensor", "window_end"] * NUM_BLOCKS + [
        "join_windows"
    ]
    torch.testing.assert_close(output, model(x), rtol=2e-2, atol=2e-2)


def test_a_graph_input_that_is_sent_does_not_cost_the_cuda_graph(nccl):
    class SendsItsInput(Model):
        def forward(self, x):
            return super().forward(all_reduce(x)) + x

    model = SendsItsInput(all_reduce)
    off, on = (outputs(model, backend, mode="reduce-overhead") for backend in ("inductor", "dsv41"))
    assert reports()[0].num_windows == NUM_BLOCKS + 1
    assert counters["inductor"]["cudagraph_skips"] == 0
    assert all(torch.equal(got, expected) for got, expected in zip(on, off))
