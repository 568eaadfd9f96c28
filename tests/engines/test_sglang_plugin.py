"""The plugin as SGLang loads it: found by its entry point, light, honest about what it cannot hook, and early enough."""

import json
import subprocess
import sys
import textwrap

import pytest
import sglang_rank

LOAD = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
from sglang.srt.plugins import load_plugins
"""


def script(code: str) -> str:
    return LOAD + textwrap.dedent(code)


def test_unless_asked_for_it_hooks_nothing(run_python):
    code = script("""
        load_plugins()
        from dsv41_l2pf.integrations import sglang
        assert sglang.session() is None
        from sglang.srt.distributed.parallel_state import GroupCoordinator
        assert not hasattr(GroupCoordinator.all_reduce, "__wrapped__")
    """)
    result = run_python(code, DSV41_L2_PREFETCH="")
    assert "Executed general plugin: dsv41_l2pf" in result.stderr


def test_the_whitelist_of_sglang_leaves_it_out(run_python):
    code = script("""
        load_plugins()
        assert "dsv41_l2pf" not in sys.modules
    """)
    result = run_python(code, DSV41_L2_PREFETCH="1", SGLANG_PLUGINS="another")
    assert "Skipping plugin dsv41_l2pf" in result.stderr


def test_loading_it_is_light(run_python):
    """Parent, tokenizer and detokenizer processes load it too: no CUDA, no engine module that was not there before."""
    code = script("""
        import os
        import time
        before = set(sys.modules)
        os.environ["SGLANG_PLUGINS"] = "dsv41_l2pf"
        begin = time.perf_counter()
        load_plugins()
        seconds = time.perf_counter() - begin
        import torch
        from dsv41_l2pf.integrations import sglang
        assert sglang.session() is not None and not torch.cuda.is_initialized()
        assert sglang.session()._prefetcher is None
        heavy = ("sglang", "b12x", "cutlass", "triton", "torch._inductor", "torch._functorch", "networkx")
        new = sorted(name for name in set(sys.modules) - before if name.startswith(heavy))
        assert new == [], new
        assert seconds < 3, seconds
    """)
    run_python(code, DSV41_L2_PREFETCH="1")


HOOKED_LATE = """
from sglang.srt.distributed import parallel_state
from sglang.srt.layers.quantization import fp8, fp8_utils
from sglang.srt.models import beam  # imports tiny_gemm_bf16 by name
"""
HOOKED_EARLY = """
load_plugins()
assert "sglang.srt.models.beam" not in sys.modules
"""
CHECKS = """
load_plugins()
from sglang.kernels.ops.gemm import tiny_gemm
from sglang.srt.distributed import parallel_state
from sglang.srt.layers.quantization import fp8, fp8_utils, unquant
from sglang.srt.models import beam, deepseek_v2, deepseek_v4
from dsv41_l2pf.integrations import sglang

installation = sglang.plugin.installation
assert installation.hooks.failed == [] and installation.problems == []
for function in (
    parallel_state.GroupCoordinator.all_reduce,
    parallel_state.GroupCoordinator._all_gather_into_tensor,
    fp8.Fp8LinearMethod.apply,
    unquant.UnquantizedLinearMethod.apply,
    fp8_utils.flashinfer_mxfp8_blockscaled_linear,
    deepseek_v2.MoEGate.forward,
    deepseek_v4.DeepseekV4Model.forward,
    tiny_gemm.tiny_gemm_bf16,
):
    assert hasattr(function, "__wrapped__"), function
# Whoever had imported it by name has the hooked one too.
assert beam.tiny_gemm_bf16 is tiny_gemm.tiny_gemm_bf16
sglang.unregister()
assert beam.tiny_gemm_bf16 is tiny_gemm.tiny_gemm_bf16
assert not hasattr(tiny_gemm.tiny_gemm_bf16, "__wrapped__")
assert not hasattr(parallel_state.GroupCoordinator.all_reduce, "__wrapped__")
"""


@pytest.mark.parametrize("before", [HOOKED_LATE, HOOKED_EARLY], ids=["models loaded before", "models loaded after"])
def test_the_order_of_imports_does_not_matter(run_python, before):
    run_python(LOAD + before + CHECKS, DSV41_L2_PREFETCH="1")


RENAMED = """
from dsv41_l2pf.integrations import sglang_targets, targets
broken = {names!r}
real = targets.source_parameters
def source_parameters(path, name):
    found = real(path, name)
    return found and (*found[:1], "renamed", *found[2:]) if name in broken else found
targets.source_parameters = source_parameters
"""


def test_a_changed_function_switches_its_part_off_and_is_named(run_python):
    code = LOAD + RENAMED.format(names=["MoEGate.forward", "Fp8LinearMethod.apply"])
    code += textwrap.dedent("""
        load_plugins()
        from sglang.srt.layers.quantization import fp8, unquant
        from sglang.srt.distributed.parallel_state import GroupCoordinator
        assert not hasattr(fp8.Fp8LinearMethod.apply, "__wrapped__")
        assert not hasattr(unquant.UnquantizedLinearMethod.apply, "__wrapped__")
        assert hasattr(GroupCoordinator.all_reduce, "__wrapped__")
    """)
    stderr = run_python(code, DSV41_L2_PREFETCH="1").stderr
    assert "WARNING dsv41_l2pf: sglang 0.5.23: " in stderr and "off: linear weights (" in stderr
    assert "Fp8LinearMethod.apply: expected parameters (self, layer, x, ...), got (self, renamed, x, bias)" in stderr


def test_without_an_essential_function_nothing_is_hooked(run_python):
    code = LOAD + RENAMED.format(names=["DeepseekV4Model.forward"])
    code += textwrap.dedent("""
        load_plugins()
        from sglang.srt.distributed.parallel_state import GroupCoordinator
        assert not hasattr(GroupCoordinator.all_reduce, "__wrapped__")
    """)
    stderr = run_python(code, DSV41_L2_PREFETCH="1").stderr
    assert "prefetching is off, since it needs: sglang.srt.models.deepseek_v4.DeepseekV4Model.forward" in stderr


def test_strict_stops_the_server(run_python):
    """SGLang swallows every Exception of a plugin; SystemExit is none."""
    code = LOAD + RENAMED.format(names=["Fp8LinearMethod.apply"]) + "load_plugins()\nprint('went on')\n"
    result = run_python(code, check=False, DSV41_L2_PREFETCH="strict")
    assert result.returncode == 1 and "went on" not in result.stdout
    assert "dsv41_l2pf (strict): sglang 0.5.23: " in result.stderr and "Fp8LinearMethod.apply" in result.stderr


def test_a_wrong_setting_is_said_and_the_server_goes_on(run_python):
    result = run_python(script("load_plugins()\nprint('went on')"), DSV41_L2_PREFETCH="1", DSV41_L2_PREFETCH_MB="lots")
    assert result.stdout.strip() == "went on"
    assert "ERROR dsv41_l2pf: prefetching is off: DSV41_L2_PREFETCH_MB: expected MiB a window" in result.stderr


SERVER = """
import json, sys
import sglang

if __name__ == "__main__":
    engine = sglang.Engine(**json.loads(sys.argv[1]))
    outputs = engine.generate(
        input_ids=[[1, 2, 3, 4], [5, 6, 7]], sampling_params={"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
    )
    print("OUTPUT", json.dumps([output["output_ids"] for output in outputs]))
    engine.shutdown()
"""


def serve(folder, **environ) -> tuple[list, str]:
    """Greedy tokens and the log of a whole SGLang server with two spawned schedulers, a tokenizer and a detokenizer."""
    import os

    model = sglang_rank.write_model(folder)
    arguments = {**sglang_rank.ARGUMENTS, "model_path": model, "tp_size": 2, "log_level": "info"}
    file = folder / "server.py"
    file.write_text(SERVER)
    environ = {**os.environ, **sglang_rank.ENVIRONMENT, **environ}
    environ["PYTHONPATH"] = os.pathsep.join((str(sglang_rank.STUBS), os.environ["PYTHONPATH"]))
    command = [sys.executable, str(file), json.dumps(arguments)]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500)
    log = result.stdout + result.stderr
    found = [line for line in result.stdout.splitlines() if line.startswith("OUTPUT ")]
    assert len(found) == 1, log[-8000:]
    return json.loads(found[0].removeprefix("OUTPUT ")), log


def test_a_whole_server_with_one_environment_variable(tmp_path):
    """The tokens are those of a server without the plugin, and the log says what was hooked and learned."""
    expected, log = serve(tmp_path, DSV41_L2_PREFETCH="0")
    assert [len(tokens) for tokens in expected] == [6, 6] and "dsv41_l2pf: " not in log
    tokens, log = serve(tmp_path, DSV41_L2_PREFETCH="1")
    assert tokens == expected
    lines = [line for line in log.splitlines() if "dsv41_l2pf: " in line]
    hooked = [line for line in lines if " targets; model LlamaForCausalLM" in line]
    assert sorted(line[line.index(" TP") + 1 :].split("]")[0] for line in hooked) == ["TP0", "TP1"]
    learned = [line.split("dsv41_l2pf: ")[1] for line in lines if "learned" in line]
    assert learned == ["learned tokens=2 mode=decode: 8 collectives, 7 windows, 1.94 MiB planned"]
    assert len(lines) == 3, lines
