"""Which tensors a linear's kernel reads: prepared, swizzled and twin copies in place of the parameters they came from."""

import types

import pytest
import torch

from dsv41_l2pf.integrations.reads import fp8_tensors, layer_tensors


def named(**tensors):
    layer = torch.nn.Module()
    for name in tensors:
        layer.register_parameter(name, torch.nn.Parameter(torch.zeros(4), requires_grad=False))
    return layer


def backend(word):
    return types.SimpleNamespace(**{f"is_{word}": lambda: True})


@pytest.mark.parametrize(
    ("method", "x", "read"),
    [
        (dict(use_mxfp8=True, mxfp8_dense_backend=backend("flashinfer_cutlass")), None, "weight_scale_inv_swizzled"),
        (dict(use_mxfp8=True, mxfp8_dense_backend=backend("flashinfer_cutedsl")), None, "weight_scale_inv_swizzled"),
        (dict(use_mxfp8=True, mxfp8_dense_backend=backend("flashinfer_trtllm")), None, "weight_scale_inv_shuffled"),
        (dict(use_mxfp8=True, mxfp8_dense_backend=backend("deep_gemm")), None, "weight_scale_inv_deepgemm"),
        (dict(use_mxfp8=True, mxfp8_dense_backend=backend("triton")), None, "weight_scale_inv"),
        (dict(use_mxfp8=True), None, "weight_scale_inv_swizzled"),
        (
            dict(use_mxfp8=True, mxfp8_dense_backend=backend("flashinfer_cutlass")),
            (0, torch.zeros(1, dtype=torch.int32)),
            "weight_scale_inv_deepgemm",
        ),
        (dict(block_fp8_as_mxfp8=True, block_quant=True), (0, torch.zeros(1)), "weight_scale_inv"),
        (dict(block_quant=True), None, "weight_scale_inv"),
        (dict(use_marlin=True), None, "weight_scale"),
        (dict(), None, "weight_scale"),
    ],
)
def test_the_scale_that_an_fp8_linear_reads(method, x, read):
    names = "weight weight_scale weight_scale_inv weight_scale_inv_swizzled weight_scale_inv_shuffled".split()
    layer = named(**dict.fromkeys([*names, "weight_scale_inv_deepgemm"]))
    layer.block_fp8_mxfp8_ready = True
    tensors = fp8_tensors(types.SimpleNamespace(**method), layer, x)
    assert [t.data_ptr() for t in tensors] == [layer.weight.data_ptr(), getattr(layer, read).data_ptr()]


def test_a_twin_is_read_in_place_of_the_weight():
    layer = named(weight=0, weight_scale_inv=0)
    layer._block_fp8_bf16_weight = torch.zeros(8)
    method = types.SimpleNamespace(block_quant=True)
    assert [t.data_ptr() for t in fp8_tensors(method, layer, None)] == [layer._block_fp8_bf16_weight.data_ptr()]


def test_other_layers_are_read_with_their_prepared_copies():
    layer = named(weight=0, weight_scale=0, weight_scale_interleaved=0, alpha=0, bias=0, input_scale=0)
    assert [t.data_ptr() for t in layer_tensors(layer)] == [
        getattr(layer, name).data_ptr() for name in ("weight", "weight_scale_interleaved", "alpha")
    ]


def test_tensors_that_the_operators_refuse_are_left_out():
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.zeros(4, device="meta"), requires_grad=False)
    layer.scale = torch.nn.Parameter(torch.zeros(0), requires_grad=False)
    assert layer_tensors(layer) == []
