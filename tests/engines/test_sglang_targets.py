"""The table of hooked functions against the installed SGLang and b12x, as source and as loaded modules."""

import dataclasses
import functools
import importlib

import pytest

from dsv41_l2pf.integrations import b12x_targets, sglang_targets
from dsv41_l2pf.integrations.sglang import mode_of
from dsv41_l2pf.integrations.targets import look_at, version_of

TARGETS = sglang_targets.TARGETS + b12x_targets.TARGETS
# Of other versions: the table names them as optional.
ELSEWHERE = {
    "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater.update_weights_from_distributed"
}
ASCEND = ("_npu.", "Ascend", "modelslim")  # linear methods of an accelerator that this library does not know


def is_here(target):
    return target.path not in ELSEWHERE and ".roce_ring." not in target.module


HERE = [target for target in TARGETS if is_here(target)]


def test_the_recorded_versions_are_installed():
    assert version_of("sglang") == sglang_targets.VERSION
    assert version_of("b12x") == b12x_targets.VERSION


@pytest.mark.parametrize("target", HERE, ids=lambda target: target.path)
def test_the_source_has_it_as_recorded(target):
    finding = look_at(target)
    assert finding.problem == "" and finding.parameters == target.parameters


@pytest.mark.parametrize("target", HERE, ids=lambda target: target.path)
def test_the_loaded_module_has_it_as_recorded(target):
    importlib.import_module(target.module)
    finding = look_at(target)
    assert finding.problem == "" and finding.parameters == target.parameters


@pytest.mark.parametrize("target", [t for t in TARGETS if not is_here(t)], ids=lambda target: target.path)
def test_what_only_other_versions_have_is_optional(target):
    assert target.optional and look_at(target).problem.endswith("is missing")


@pytest.mark.parametrize("target", [t for t in HERE if t.uses], ids=lambda target: target.path)
def test_a_changed_signature_fails_with_the_name(target):
    last = target.uses - 1
    changed = (*target.parameters[:last], "renamed", *target.parameters[last + 1 :])
    problem = look_at(dataclasses.replace(target, parameters=changed)).problem
    assert problem.startswith(f"{target.path}: expected parameters (") and "renamed" in problem


def test_the_modes_that_are_decode_like():
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    class Batch:
        def __init__(self, mode):
            self.forward_mode = mode

    words = {mode.name: mode_of(Batch(mode)) for mode in ForwardMode}
    assert {name: word for name, word in words.items() if word} == {
        "DECODE": "decode",
        "TARGET_VERIFY": "target_verify",
        "DRAFT_EXTEND_V2": "draft_extend",
    }


def test_every_linear_method_that_decodes_a_layer_is_in_the_table():
    """A new quantization method must be looked at, not missed."""
    from sglang.srt.layers.quantization import base_config

    table = {target.path for target in sglang_targets.TARGETS if target.part == sglang_targets.LINEARS}
    for module in {target.module for target in sglang_targets.TARGETS if target.part == sglang_targets.LINEARS}:
        importlib.import_module(module)

    def inherited(cls):
        for child in cls.__subclasses__():
            yield child
            yield from inherited(child)

    methods = {cls for cls in inherited(base_config.LinearMethodBase) if "apply" in vars(cls)}
    own = {f"{cls.__module__}.{cls.__qualname__}.apply" for cls in methods}
    assert {path for path in own - table if not any(word in path for word in ASCEND)} == set()


def test_the_mxfp8_dispatcher_hands_out_the_hooked_function():
    """SGLang binds the kernel into a partial when a layer is built: it must hold what the module held by then."""
    from sglang.srt.layers.quantization import fp8_utils

    original = fp8_utils.flashinfer_mxfp8_blockscaled_linear
    backend = fp8_utils.Fp8GemmRunnerBackend.FLASHINFER_CUTLASS
    from dsv41_l2pf.integrations import sglang

    assert sglang.session() is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp8_utils, "resolve_mxfp8_dense_gemm_backend", lambda *args, **kwargs: backend)
        patch.setenv("DSV41_L2_PREFETCH", "1")
        sglang.register()
        try:
            bound = fp8_utils.dispatch_w8a8_mxfp8_linear()
            function = bound.func if isinstance(bound, functools.partial) else bound
            assert function is fp8_utils.flashinfer_mxfp8_blockscaled_linear is not original
            assert function.__wrapped__ is original
        finally:
            sglang.unregister()
    assert fp8_utils.flashinfer_mxfp8_blockscaled_linear is original
