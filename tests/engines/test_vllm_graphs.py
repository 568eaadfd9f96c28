"""vLLM's own graph holders with the plugin tuning them. CUDA graphs are replaced: a replay only says that it ran."""

import pytest
from test_vllm_plugin import OLD_RUNNER, script

FAKES = """
from dsv41_l2pf import live_tuning
from dsv41_l2pf.integrations import vllm_graphs

GAIN_US = float(sys.argv[1])
ran, opened = [], []

class Span:
    now_us = 0.0
    def end(self):
        self.taken_us = Span.now_us
    def us(self):
        return self.taken_us

live_tuning.LiveTuning.__init__.__kwdefaults__.update(rounds=4, span=Span)

class Graph:
    def replay(self):
        ran.append(self.has_windows)
        Span.now_us = 1000.0 - (GAIN_US if self.has_windows else 0)

@contextlib.contextmanager
def graph(cuda_graph, *args, **kwargs):
    inside.append(cuda_graph)
    yield
    cuda_graph.has_windows = opened[-1]
    inside.clear()

def runnable(x):
    opened.append(session.in_forward)
    torch.ops.dsv41.collective_begin(x, "all_reduce")
    torch.ops.dsv41.collective_end(x)
    if session.in_forward:
        session.prefetcher.windows.record([model.weight])  # a CPU forgets what a captured forward does not read again
    return model(x)

def check(slot, captured):
    assert set(ran) == {True, False} and len(ran) == 1200
    assert slot() is captured if GAIN_US > 0 else not slot().has_windows
    assert type(slot()) is Graph
    print("stays with windows" if all(ran[-50:]) else "stays without" if not any(ran[-50:]) else "mixed")

torch.cuda.CUDAGraph, torch.cuda.graph = Graph, graph
vllm_graphs.is_capturing = lambda: bool(inside)
"""

V1 = """
wrapper.runnable = runnable
runner._warmup_and_capture(BatchDescriptor(4, uniform=True), CUDAGraphMode.FULL)
# One that learns, the warm-up, the capture, and the one without windows.
assert opened == [True, False, True, False], opened
(entry,) = wrapper.concrete_cudagraph_entries.values()
captured = entry.cudagraph._with_windows.graph
assert captured.has_windows
for _ in range(1200):
    dummy_run(4, CUDAGraphMode.FULL)
assert len(opened) == 4
check(lambda: entry.cudagraph, captured)
"""

V2 = """
from vllm.v1.worker.gpu import cudagraph_utils
cudagraph_utils.graph_capture = cudagraph_utils.capture_pool = lambda *args, **kwargs: contextlib.nullcontext()
cudagraph_utils.current_stream = lambda: None
manager = object.__new__(cudagraph_utils.CudaGraphManager)
manager.device, manager.pool, manager.graphs, manager.vllm_config = torch.device("cpu"), None, {}, None
manager.cudagraph_mode, manager.use_breakable_cg = CUDAGraphMode.FULL_AND_PIECEWISE, False
manager.ubatch_runner = manager._max_full_descs_to_capture = manager._capture_mem_samples = None
Shape = cudagraph_utils.BatchExecutionDescriptor
full = [Shape(CUDAGraphMode.FULL, n, n, uniform_token_count=1) for n in (4, 2)]
listed = manager._capture_descs = {CUDAGraphMode.FULL: full, CUDAGraphMode.PIECEWISE: [Shape(CUDAGraphMode.PIECEWISE, 4, None)]}
cudagraph_utils.is_global_first_rank = lambda: False
captured_shapes = []

def create(desc, warmup):
    def forward(mode):
        captured_shapes.append((desc.cg_mode.name, desc.num_tokens, bool(inside)))
        runnable(torch.ones(desc.num_tokens, 64))
    return forward

manager._max_full_descs_to_capture = 1
manager.capture(create)
assert not hasattr(manager.graphs[full[0]], "_with_windows"), "what only measures memory is not done twice"
manager.graphs, manager._max_full_descs_to_capture = {}, None
captured_shapes.clear()
manager.capture(create)
assert manager._capture_descs is listed and list(manager.graphs) == full
full_captures = [(n, captures) for mode, n, captures in captured_shapes if mode == "FULL"]
once = [(4, False), (4, False), (4, True), (2, False), (2, False), (2, True)]  # one learns, the warm-up, the capture
assert full_captures == once + [(4, False), (4, True), (2, False), (2, True)], full_captures
assert [mode for mode, _, _ in captured_shapes].count("PIECEWISE") == 2, "pieces are not captured again"
captured = manager.graphs[full[1]]._with_windows.graph
assert captured.has_windows
for _ in range(1200):
    cudagraph_utils.CudaGraphManager.run_fullgraph(manager, full[1])
check(lambda: manager.graphs[full[1]], captured)
assert manager.graphs[full[0]]._with_windows.graph.has_windows, "the other one is still on trial"
"""


@pytest.mark.parametrize(("gain_us", "stays"), [(50, "with windows"), (-20, "without")])
@pytest.mark.parametrize("runner", [V1, V2], ids=["V1", "V2"])
def test_the_faster_graph_stays(run_python, runner, gain_us, stays):
    code = script(OLD_RUNNER + FAKES + runner)
    result = run_python(code, str(gain_us), DSV41_L2_PREFETCH="1", DSV41_L2_PREFETCH_TUNE="1")
    assert result.stdout.endswith(f"stays {stays}\n")


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_a_second_capture_that_fails_leaves_the_first_graph(run_python, runner):
    fails = """
def failing(x, run=runnable):
    if inside and not session.in_forward:
        inside.clear()
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")
    return run(x)
runnable = failing
"""
    if runner == "V1":
        setup = V1[: V1.index("# One that learns")]
        check = "(entry,) = wrapper.concrete_cudagraph_entries.values()\nassert type(entry.cudagraph) is Graph and entry.cudagraph.has_windows"
    else:
        setup = V2[: V2.index("manager._max_full_descs_to_capture = 1")] + "manager.capture(create)\n"
        check = "assert all(type(g) is Graph and g.has_windows for g in manager.graphs.values()) and len(manager.graphs) == 2"
    code = script(OLD_RUNNER + FAKES + fails + setup + check)
    result = run_python(code, "50", DSV41_L2_PREFETCH="1", DSV41_L2_PREFETCH_TUNE="1")
    assert "dsv41_l2pf: tokens=4 mode=decode is not tuned: CUDA out of memory" in result.stdout + result.stderr
