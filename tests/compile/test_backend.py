"""The backend as a user meets it: names, modes, options, other backends, grad mode, caches, and its purity."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from compiled_chain import HIDDEN, Chain, all_gather, all_reduce, emulated, tokens
from generated import OURS, dynamo_graph, generate, generate_both
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

import dsv41_l2pf as l2pf
from dsv41_l2pf import Config, compile_backend
from dsv41_l2pf.compile import dsv41, reports
from dsv41_l2pf.compile.place import place_in_dynamo

ROOT = Path(__file__).resolve().parent.parent.parent


def run_python(code, tmp_path, **environment):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **environment}
    result = subprocess.run([sys.executable, "-c", code], cwd="/", env=env, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


FIND_IT = """
from torch._dynamo.backends.registry import lookup_backend
print(type(lookup_backend("dsv41")).__name__, type(lookup_backend("dsv41")).__module__.partition(".")[0])
"""
FOUND = ["CompileBackend", "dsv41_l2pf"]


def test_the_name_is_known_after_an_import_that_does_not_import_dynamo(tmp_path):
    code = "import sys, torch, dsv41_l2pf; print('torch._dynamo' in sys.modules)" + FIND_IT
    assert run_python(code, tmp_path) == ["False", *FOUND]


def test_the_name_is_known_when_dynamo_looked_before(tmp_path):
    code = "import torch._dynamo; print('dsv41' in torch._dynamo.list_backends()); import dsv41_l2pf" + FIND_IT
    assert run_python(code, tmp_path) == ["False", *FOUND]


def test_an_installed_package_needs_no_import(tmp_path):
    installed = tmp_path / "site" / "dsv41_l2pf-0.1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: dsv41-l2pf\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text("[torch_dynamo_backends]\ndsv41 = dsv41_l2pf.compile:dsv41\n")
    path = os.pathsep.join((str(ROOT), str(installed.parent)))
    assert run_python("import torch" + FIND_IT, tmp_path, PYTHONPATH=path) == FOUND


def test_the_entry_point_is_declared():
    line = 'dsv41 = "dsv41_l2pf.compile:dsv41"'
    assert f'[project.entry-points."torch_dynamo_backends"]\n{line}' in (ROOT / "pyproject.toml").read_text()
    assert EntryPoint("dsv41", "dsv41_l2pf.compile:dsv41", "torch_dynamo_backends").load() is dsv41


def test_it_is_listed():
    assert "dsv41" in torch._dynamo.list_backends()


def test_equal_backends_share_compiled_code():
    assert compile_backend() == compile_backend() and hash(compile_backend()) == hash(compile_backend())
    assert compile_backend(config=Config(budget_bytes=1)) != compile_backend(config=Config(budget_bytes=2))
    model, x = Chain(emulated), tokens()
    for _ in range(3):
        torch.compile(model, backend=compile_backend(inner="eager"))(x)
    assert len(reports()) == 1


def test_mode_and_options_reach_inductor():
    seen = []

    class Inner:
        def __call__(self, gm, inputs, **kwargs):
            seen.append(kwargs)
            return gm.forward

    torch.compile(Chain(emulated), backend=compile_backend(inner=Inner()), mode="reduce-overhead")(tokens())
    torch.compiler.reset()
    torch.compile(Chain(emulated), backend=compile_backend(inner=Inner()), options={"a": 1})(tokens())
    assert seen == [{"mode": "reduce-overhead"}, {"options": {"a": 1}}]
    with pytest.raises(Exception, match="Unexpected optimization option"):
        torch.compile(Chain(emulated), backend="dsv41", options={"no_such_option": 1})(tokens())


@pytest.mark.parametrize("inner", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_another_inner_backend(inner):
    model, x = Chain(emulated), tokens()
    expected = torch.compile(model, backend=inner, fullgraph=True)(x)
    torch.compiler.reset()
    assert torch.equal(torch.compile(model, backend=compile_backend(inner=inner), fullgraph=True)(x), expected)
    (report,) = reports()
    assert [window.weights for window in report.windows] == model.windows()


def test_an_inner_backend_sees_our_operators_and_one_of_ours_inside_edits_nothing():
    counter = CompileCounterWithBackend("aot_eager")
    torch.compile(Chain(emulated), backend=compile_backend(inner=compile_backend(inner=counter)), fullgraph=True)(
        tokens()
    )
    (gm,) = counter.graphs
    found = [
        str(node.target)
        for node in gm.graph.nodes
        if "dsv41" in str(node.target) and "emulated" not in str(node.target)
    ]
    assert found == ["dsv41.window_begin.default", "dsv41.window_end.default"] * 2 + ["dsv41.join_windows.default"]
    assert [report.reason for report in reports()] == ["", "another backend of ours has edited it"]


def test_dynamic_shapes_compile_once():
    model = Chain(emulated)
    compiled = torch.compile(model, backend="dsv41", dynamic=True, fullgraph=True)
    for num_tokens in (4, 5, 9):
        torch.testing.assert_close(compiled(tokens(num_tokens)), model(tokens(num_tokens)))
    (report,) = reports()
    assert report.num_windows == 2


def test_more_tokens_than_max_tokens_get_no_window():
    off, on = generate_both(Chain(emulated), tokens(8), config=Config(max_tokens=7))
    assert {window.reason for window in on.reports[0].windows} == {"8 tokens, more than max_tokens = 7"}
    assert on.calls == off.calls


def test_all_gathers_can_be_off(group):
    gm = dynamo_graph(Chain(all_gather), tokens())
    report = place_in_dynamo(gm, Config(all_gather=False))
    assert {window.reason for window in report.windows} == {"all-gathers are off"}


@pytest.mark.parametrize("config", [Config(enabled=False), Config(budget_bytes=0)], ids=["disabled", "no budget"])
def test_off_changes_nothing(config):
    gm = dynamo_graph(Chain(emulated), tokens())
    code = gm.code
    report = place_in_dynamo(gm, config)
    assert (report.num_windows, gm.code) == (0, code)
    assert "off" in str(report) or "the budget is 0" in str(report)


def test_without_a_config_the_environment_is_read_at_each_compilation(monkeypatch):
    model, x = Chain(emulated), tokens()
    for value, num_windows in (("0", 0), ("1", 2)):
        monkeypatch.setenv("DSV41_L2_PREFETCH", value)
        torch.compiler.reset()
        torch.compile(model, backend=compile_backend(inner="eager"))(x)
        assert reports()[-1].num_windows == num_windows


def test_a_model_without_collectives_is_compiled_as_it_is():
    off, on = generate_both(torch.nn.Linear(HIDDEN, HIDDEN), tokens())
    assert on.calls == off.calls
    assert str(on.reports[0]) == "0 windows of 0 collectives, 0 bytes planned"


def test_training_is_left_alone():
    model, x = Chain(emulated, num_layers=1), tokens()
    with torch.enable_grad():
        torch.compile(model, backend=compile_backend(inner="aot_eager"))(x).sum().backward()
        got = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
    for parameter, grad in zip(model.parameters(), got):
        torch.testing.assert_close(parameter.grad, grad)
    (report,) = reports()
    assert report.num_windows == 0
    assert "gradients are recorded: compile under torch.no_grad() or torch.inference_mode()" in str(report)


def test_inference_mode():
    model, x = Chain(emulated), tokens()
    with torch.inference_mode():
        compiled = torch.compile(model, backend=compile_backend(inner="aot_eager"), fullgraph=True)
        assert torch.equal(compiled(x), model(x))
    assert reports()[0].num_windows == 2


def test_freezing_is_left_alone():
    on = generate(Chain(emulated).eval(), tokens(), backend="dsv41", options={"freezing": True})
    assert not set(OURS) & set(on.calls)
    assert "freezing repacks the weights" in str(on.reports[0])


def test_the_pass_is_pure():
    model = Chain(emulated)
    first, second = (dynamo_graph(model, tokens()) for _ in range(2))
    before = first.code
    reported = [place_in_dynamo(gm, Config(budget_bytes=20000)) for gm in (first, second)]
    assert first.code == second.code != before
    assert reported[0] == reported[1]
    for slot in (
        "post_grad_custom_pre_pass",
        "post_grad_custom_post_pass",
        "joint_custom_pre_pass",
        "pre_grad_custom_pass",
    ):
        assert getattr(torch._inductor.config, slot) is None


def test_generated_code_is_the_same_every_time():
    first, second = (generate(Chain(emulated), tokens(), backend="dsv41").code[0] for _ in range(2))
    assert first.partition("\n")[2] == second.partition("\n")[2]  # behind the number that AOTAutograd counts up


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Inductor's and AOTAutograd's caches, empty."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with (
        torch.compiler.config.patch(force_disable_caches=False),
        torch._inductor.config.patch(fx_graph_remote_cache=False),
    ):
        yield


def hits_and_misses(model, backend):
    torch.compiler.reset()
    counters.clear()
    torch.compile(model, backend=backend)(tokens())
    found = counters["aot_autograd"]
    return found["autograd_cache_hit"], found["autograd_cache_miss"], found["autograd_cache_bypass"]


def test_the_config_is_part_of_the_cache_key(cache):
    model = Chain(emulated, num_layers=1)
    small, large = (compile_backend(config=Config(budget_bytes=budget)) for budget in (1024, 2048))
    assert hits_and_misses(model, "inductor") == (0, 1, 0)
    assert hits_and_misses(model, small) == (0, 1, 0)
    assert hits_and_misses(model, small) == (1, 0, 0)
    assert hits_and_misses(model, large) == (0, 1, 0)
    assert hits_and_misses(model, compile_backend(config=Config(enabled=False))) == (1, 0, 0)  # the graph without us
    assert [report.num_windows for report in reports()] == [1, 1, 1, 0]


def test_what_it_exports():
    assert l2pf.compile_backend is compile_backend
    assert {"compile_backend", "dsv41", "reports"} <= set(l2pf.compile.__all__)


def test_the_report_says_what_was_found(group):
    text = str(place_in_dynamo(dynamo_graph(Chain(all_reduce), tokens()), Config()))
    num_bytes = 2 * HIDDEN * HIDDEN * 2 * 4 + HIDDEN * 4 + HIDDEN * HIDDEN * 4
    assert text == f"2 windows of 2 collectives, {num_bytes} bytes planned"
