"""The plugin as vLLM loads it: found by its entry point, light, honest, and there before the worker is made."""

import textwrap

import pytest

LOAD = """
import logging, sys
from vllm.plugins import load_general_plugins
"""


def script(code: str) -> str:
    return LOAD + textwrap.dedent(code)


def test_unless_asked_for_it_hooks_nothing(run_python):
    code = script("""
        load_general_plugins()
        from dsv41_l2pf.integrations import vllm
        assert vllm.session() is None
    """)
    run_python(code, DSV41_L2_PREFETCH="0")


def test_loading_it_is_light_and_twice_is_once(run_python):
    """It is loaded by the front end, the engine core and every worker: no CUDA, no module that was not there before."""
    code = script("""
        import time
        before = set(sys.modules)
        begin = time.perf_counter()
        load_general_plugins()
        seconds = time.perf_counter() - begin
        import torch
        from dsv41_l2pf.integrations import vllm
        assert not torch.cuda.is_initialized() and vllm.session()._prefetcher is None
        heavy = ("vllm.v1", "vllm.model_executor", "vllm.distributed", "triton", "flashinfer", "torch._inductor", "networkx")
        new = sorted(name for name in set(sys.modules) - before if name.startswith(heavy))
        assert new == [], new
        assert seconds < 3, seconds
        first = vllm.session()
        vllm.register()
        assert vllm.session() is first
    """)
    run_python(code, DSV41_L2_PREFETCH="1")


def test_the_inspection_process_is_left_alone(run_python):
    """vLLM looks at a model's class in a process of its own, and loads the plugins there too."""
    code = script("""
        import importlib.machinery
        sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec("vllm.model_executor.models.registry", None)
        load_general_plugins()
        from dsv41_l2pf.integrations import vllm
        assert vllm.session() is None
    """)
    run_python(code, DSV41_L2_PREFETCH="1")
    from vllm.model_executor.models import registry

    from dsv41_l2pf.integrations.vllm import _INSPECTION

    assert registry._SUBPROCESS_COMMAND[-2:] == ["-m", _INSPECTION]


RENAMED = """
from dsv41_l2pf.integrations import targets
real = targets.source_parameters
def source_parameters(path, name):
    found = real(path, name)
    return found and (*found[:1], "renamed", *found[2:]) if name == {name!r} else found
targets.source_parameters = source_parameters
"""


def test_a_changed_function_switches_its_part_off_and_is_named(run_python):
    code = LOAD + RENAMED.format(name="GroupCoordinator.all_gatherv")
    code += textwrap.dedent("""
        load_general_plugins()
        from vllm.distributed.parallel_state import GroupCoordinator
        assert not hasattr(GroupCoordinator._all_gather_out_place, "__wrapped__")
        assert hasattr(GroupCoordinator._all_reduce_out_place, "__wrapped__")
    """)
    result = run_python(code, DSV41_L2_PREFETCH="1")
    said = " ".join((result.stdout + result.stderr).split())
    assert "dsv41_l2pf: vllm 0.33.0: " in said and "off: all-gather windows (" in said
    assert "all_gatherv: expected parameters (self, input_, ...), got (self, renamed, dim, sizes)" in said


@pytest.mark.parametrize(("gate", "status"), [("1", 0), ("strict", 1)])
def test_without_an_essential_function_nothing_is_hooked_and_strict_stops(run_python, gate, status):
    code = LOAD + RENAMED.format(name="GroupCoordinator._all_reduce_out_place")
    code += textwrap.dedent("""
        load_general_plugins()
        from vllm.distributed.parallel_state import GroupCoordinator
        assert not hasattr(GroupCoordinator._all_gather_out_place, "__wrapped__")
        print("went on")
    """)
    result = run_python(code, check=False, DSV41_L2_PREFETCH=gate)
    assert result.returncode == status and ("went on" in result.stdout) == (status == 0), result.stderr
    assert "GroupCoordinator._all_reduce_out_place: expected parameters" in result.stdout + result.stderr


UPDATES = """
load_general_plugins()
import types
import torch
from dsv41_l2pf.integrations import vllm
from vllm.v1.worker import gpu_worker

session, seen = vllm.session(), []
budgets = lambda: [w["budget_bytes"] for s in session.prefetcher.status()["signatures"] for w in s["windows"]]
model = torch.nn.Linear(256, 256, bias=False).requires_grad_(False)
group = types.SimpleNamespace(unique_name="tp:0")
with session.forward(model, 4, "decode"):
    torch.ops.dsv41.collective_begin(model.weight, "all_reduce")
    torch.ops.dsv41.collective_end(model.weight)
    torch.ops.dsv41.record_weight([model.weight])
assert budgets() == [256 * 256 * 4]
torch.accelerator.synchronize = lambda: None
torch.accelerator.get_memory_info = lambda: (1, 1)
backend = types.SimpleNamespace(suspend=lambda level: seen.append(budgets()), resume=lambda tags: seen.append(budgets()))
engine = types.SimpleNamespace(
    start_weight_update=lambda: seen.append(budgets()),
    finish_weight_update=lambda: seen.append(budgets()),
    reset_weight_update_target=lambda: None,
    update_weights=lambda info: seen.append(budgets()),
)
Worker = gpu_worker.Worker
worker = object.__new__(Worker)
worker.vllm_config = types.SimpleNamespace(
    model_config=types.SimpleNamespace(enable_nccl_comm_suspend=False, sleep_preserve_parameter_names=None),
    compilation_config=types.SimpleNamespace(enabled_custom_ops=[]),
)
worker.model_runner = types.SimpleNamespace(
    model=model, reset_lora_state=lambda: None, reload_weights=lambda: seen.append(budgets())
)
worker._sleep_mode_backend, worker._sleep_saved_parameters = backend, {}
worker._sleep_saved_buffers, worker._sleep_saved_draft_buffers = {}, {}
worker.weight_transfer_engine, worker._weight_update_active, worker._weight_update_is_draft = engine, False, False
worker.synchronize_device = lambda: None
gpu_worker.current_platform.is_rocm = lambda: False
whole = budgets()
import contextlib
gpu_worker.set_current_vllm_config = lambda config: contextlib.nullcontext()
"""


def test_no_window_is_open_while_weights_sleep_or_change(run_python):
    """vLLM's own worker methods, with a sleep backend and a transfer engine that look at the budgets."""
    code = script(UPDATES) + textwrap.dedent("""
        worker.sleep(1)
        worker.wake_up(["kv_cache"])
        assert budgets() == [0]
        worker.wake_up(["weights"])
        assert seen == [[0], [0], [0]] and budgets() == whole
        seen.clear()
        worker.reload_weights()
        worker.start_weight_update()
        worker.update_weights({})
        worker.finish_weight_update()
        assert seen == [[0]] * 4 and budgets() == whole
        worker.start_weight_update()
        engine.update_weights = lambda info: 1 / 0
        try:
            worker.update_weights({})
        except ZeroDivisionError:
            pass
        assert budgets() == whole
    """)
    run_python(code, DSV41_L2_PREFETCH="1")


OLD_RUNNER = """
load_general_plugins()
import contextlib, types
import torch
from dsv41_l2pf.integrations import vllm
from vllm.compilation import cuda_graph
from vllm.config import CUDAGraphMode
from vllm.forward_context import BatchDescriptor, ForwardContext, override_forward_context
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

session, inside, modes = vllm.session(), [], []
model = torch.nn.Linear(64, 64, bias=False).requires_grad_(False)
session.know(model)
joined = []
session.join = lambda: joined.append(bool(inside))

def runnable(x):
    context = cuda_graph.get_forward_context()
    modes.append((context.skip_compiled, bool(inside), session.in_forward))
    torch.ops.dsv41.collective_begin(x, "all_reduce")
    torch.ops.dsv41.collective_end(x)
    return model(x)

@contextlib.contextmanager
def graph(*args, **kwargs):
    inside.append(1)
    yield
    inside.clear()

torch.cuda.CUDAGraph, torch.cuda.graph = object, graph
cuda_graph.capture_pool = lambda *args: contextlib.nullcontext()
cuda_graph.current_stream = cuda_graph.weak_ref_tensors = lambda *args: None
cuda_graph.validate_cudagraph_capturing_enabled = lambda: None
cuda_graph.current_platform.get_global_graph_pool = lambda: None
compilation = types.SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE, cudagraph_num_of_warmups=1)
wrapper = cuda_graph.CUDAGraphWrapper(runnable, types.SimpleNamespace(compilation_config=compilation), CUDAGraphMode.FULL)
runner = object.__new__(GPUModelRunner)
runner.compilation_config, runner.uniform_decode_query_len = compilation, 1

def dummy_run(num_tokens, cudagraph_runtime_mode, **kwargs):
    desc = BatchDescriptor(num_tokens, uniform=True)
    context = ForwardContext({}, {}, {}, cudagraph_runtime_mode=cudagraph_runtime_mode, batch_descriptor=desc)
    with override_forward_context(context):
        wrapper(torch.ones(num_tokens, 64))
        assert not context.skip_compiled

runner._dummy_run = dummy_run
torch.accelerator.synchronize = lambda: None
"""


def test_the_old_model_runner_learns_and_captures(run_python):
    """vLLM's own V1 warm-up and graph wrapper: one uncompiled learning forward, the warm-up, and the capture."""
    code = script(OLD_RUNNER) + textwrap.dedent("""
        runner._warmup_and_capture(BatchDescriptor(4, uniform=True), CUDAGraphMode.FULL)
        assert modes == [(True, False, True), (False, False, False), (False, True, True)], modes
        assert joined == [True]
        (signature,) = session.prefetcher.status()["signatures"]
        assert (signature["num_tokens"], signature["mode"], signature["num_collectives"]) == (4, "decode", 1)
        modes.clear()
        runner._warmup_and_capture(BatchDescriptor(8), CUDAGraphMode.PIECEWISE)
        dummy_run(16, CUDAGraphMode.NONE)
        assert [counts for _, _, counts in modes] == [False, False, False]
    """)
    run_python(code, DSV41_L2_PREFETCH="1")


def test_what_a_module_reads():
    import torch

    from dsv41_l2pf.integrations.vllm_learning import read_by

    inner = torch.nn.Linear(8, 8)
    adapted = torch.nn.Module()
    adapted.base_layer = inner
    experts = torch.nn.Linear(8, 8)
    experts.local_num_experts = 4
    assert [t.data_ptr() for t in read_by(inner)] == [inner.weight.data_ptr()]
    assert [t.data_ptr() for t in read_by(adapted)] == [inner.weight.data_ptr()]
    assert read_by(torch.nn.Embedding(8, 8)) == read_by(experts) == read_by(torch.nn.LayerNorm(8)) == []
