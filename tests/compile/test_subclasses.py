"""Quantised tensor subclasses: their reads show behind AOTAutograd only, and the pass goes there."""

import pytest
import torch
from compiled_chain import HIDDEN, emulated, tokens
from generated import OURS, generate_both
from quantised import quantise_linears
from torch._dynamo.utils import counters

from dsv41_l2pf import Config, compile_backend
from dsv41_l2pf.compile import reports


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (torch.nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))

    def forward(self, x):
        return self.c(emulated(self.b(emulated(self.a(x)))))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "float8"])
def test_payload_and_scale_are_planned(dtype):
    model = quantise_linears(Model(), dtype)
    off, on = generate_both(model, tokens(), fullgraph=True)
    (report,) = on.reports
    assert [window.weights for window in report.windows] == [
        ("b.weight.payload", "b.weight.scale"),
        ("c.weight.payload", "c.weight.scale"),
    ]
    assert [window.window_bytes for window in report.windows] == [HIDDEN * HIDDEN + 4 * HIDDEN] * 2
    assert [on.calls.count(name) for name in OURS] == [2, 2, 1]
    assert on.calls_besides_ours == off.calls
    assert torch.equal(on.output, off.output)
    torch.testing.assert_close(on.output, model(tokens()))


def test_another_inner_backend_cannot_see_them():
    model = quantise_linears(Model(), torch.int8)
    compiled = torch.compile(model, backend=compile_backend(inner="aot_eager"), fullgraph=True)
    torch.testing.assert_close(compiled(tokens()), model(tokens()))
    assert [report.reason for report in reports()] == [
        "tensor subclasses hide its operators; only inner='inductor' sees through them"
    ]


def test_the_config_is_part_of_the_cache_key(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = quantise_linears(Model(), torch.int8)
    found = []
    tag = torch.compiler.config.cache_key_tag
    with torch.compiler.config.patch(force_disable_caches=False):
        for budget_bytes in (1024, 1024, 2048):
            torch.compiler.reset()
            counters.clear()
            torch.compile(model, backend=compile_backend(config=Config(budget_bytes=budget_bytes)))(tokens())
            found.append((counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"]))
    assert found[0] == found[2] == (0, 0)
    assert torch.compiler.config.cache_key_tag == tag


def test_training_is_left_alone():
    model = quantise_linears(Model(), torch.int8)
    with torch.enable_grad():
        x = tokens().requires_grad_()
        torch.compile(model, backend="dsv41")(x).sum().backward()
        got, x.grad = x.grad, None
        model(x).sum().backward()
    torch.testing.assert_close(got, x.grad)
    assert [report.reason for report in reports()] == [
        "gradients are recorded: compile under torch.no_grad() or torch.inference_mode()"
    ]
