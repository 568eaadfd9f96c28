"""SGLang's own `FullCudaGraphBackend` with the plugin tuning it. CUDA graphs are replaced: they replay a Python function."""

import textwrap

TUNED = """
import contextlib, logging, sys, types
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
import torch
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.model_executor.runner_backend import full_cuda_graph_backend as module
from dsv41_l2pf import live_tuning
from dsv41_l2pf.integrations import session as session_module, sglang

GAIN_US = float(sys.argv[1])
session = sglang.session()
w, x = torch.randn(256, 256), torch.ones(4, 256)
model = torch.nn.Module()
model.w = torch.nn.Parameter(w, requires_grad=False)
all_reduce = session.collective(lambda t: t, "all_reduce", lambda args, kwargs: args[0])
opened = []

def forward():
    with session.forward(model, 4, "decode"):
        before = session._local.counts
        y = all_reduce(x)
        opened.append(before)
        session.prefetcher.windows.record([model.w])
        return y @ model.w

class Span:
    now_us = 0.0
    def end(self):
        self.taken_us = Span.now_us
    def us(self):
        return self.taken_us

live_tuning.LiveTuning.__init__.__kwdefaults__.update(rounds=4, span=Span)
ran = []

class Graph:
    def reset(self):
        pass
    def replay(self):
        ran.append(self.has_windows)
        Span.now_us = 1000.0 - (GAIN_US if self.has_windows else 0)

module.torch.cuda.CUDAGraph = Graph
inside = []

@contextlib.contextmanager
def graph(cuda_graph, pool, stream):
    inside.append(cuda_graph)
    yield
    cuda_graph.has_windows = opened[-1]
    inside.pop()

session_module.is_capturing = lambda: bool(inside)
backend = object.__new__(module.FullCudaGraphBackend)
backend.__dict__.update(
    _graphs={}, _outputs={}, _pool=None, _capture_stream=None, _memory_saver_adapter=None,
    _reuse_output_buffer=False, _output_buffer=None, _cuda_graph_runner=types.SimpleNamespace(),
    _device_module=types.SimpleNamespace(synchronize=lambda: None, graph=graph),
    _tp_group=types.SimpleNamespace(barrier=lambda: None),
    _precarve=module.GraphPoolPrecarve(),
)
warmed_up = []
backend.capture_one("key", forward, capture_inputs=None, post_warmup_hook=lambda: warmed_up.append(1))
assert len(warmed_up) == 4, "each capture has its two warm-ups"
captured = backend._graphs["key"]._with_windows.graph
assert captured.has_windows and opened == [True] * 3 + [False] * 3, opened
expected = x @ w
for _ in range(1200):
    assert torch.equal(backend.replay("key", None), expected)
assert set(ran) == {True, False}
print("stays with windows" if all(ran[-50:]) else "stays without" if not any(ran[-50:]) else "mixed")
assert (backend._graphs["key"] is captured) is (GAIN_US > 0)
backend.capture_one("key", forward, capture_inputs=None, post_warmup_hook=lambda: None)
backend.cleanup()
assert backend._graphs == {}
"""


def _tuned(run_python, gain_us):
    return run_python(textwrap.dedent(TUNED), str(gain_us), DSV41_L2_PREFETCH="1", DSV41_L2_PREFETCH_TUNE="1")


def test_a_graph_with_windows_that_pay_stays(run_python):
    result = _tuned(run_python, 50)
    assert result.stdout == "stays with windows\n"
    assert "dsv41_l2pf: tuned tokens=4 mode=decode: on by tune: the best settings (automatic) took 0.95" in result.stderr


def test_where_they_do_not_the_graph_without_windows_stays(run_python):
    result = _tuned(run_python, -20)
    assert result.stdout == "stays without\n"
    assert "dsv41_l2pf: tuned tokens=4 mode=decode: off by tune: the best settings (automatic) took 1.02" in result.stderr
