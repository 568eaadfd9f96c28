"""Which tensors a linear layer's kernel reads: for some layers not simply the parameters that the checkpoint named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..weights import DEVICES

# What a layer keeps beside the tensors that its kernel reads: inputs' scales, metadata of the loader, workspaces.
_NOT_READ = ("bias", "input_scale", "input_scale_inv", "input_global_scale", "workspace", "g_idx_sort_indices")

# Prepared copies of a parameter, by what is left unread when the layer has them. Kernels read the prepared one.
_REPLACES = {
    "weight_scale_interleaved": ("weight_scale", "weight_scale_2"),
    "weight_scale_inv_swizzled": ("weight_scale_inv",),
    "weight_scale_inv_shuffled": ("weight_scale_inv",),
}


def readable(tensors: Iterable[Any]) -> list[torch.Tensor]:
    """Those that the operators take: strided, not empty, on a CPU or a GPU."""
    return [
        tensor
        for tensor in tensors
        if isinstance(tensor, torch.Tensor)
        and tensor.layout is torch.strided
        and tensor.device.type in DEVICES
        and tensor.numel() > 0
    ]


def layer_tensors(layer: torch.nn.Module) -> list[torch.Tensor]:
    """The layer's own parameters in registration order, prepared copies in place of what they were made from."""
    named = {name: value for name, value in layer._parameters.items() if value is not None}
    for prepared, replaced in _REPLACES.items():
        if getattr(layer, prepared, None) is not None:
            named.setdefault(prepared, getattr(layer, prepared))
            for name in replaced:
                named.pop(name, None)
    return readable(value for name, value in named.items() if name not in _NOT_READ)


def _is(backend: Any, name: str) -> bool:
    return bool(getattr(backend, f"is_{name}", bool)())


def _mxfp8_scale(method: Any, layer: torch.nn.Module) -> str:
    backend = getattr(method, "mxfp8_dense_backend", None)
    if _is(backend, "flashinfer_trtllm"):
        return "weight_scale_inv_shuffled"
    if _is(backend, "deep_gemm"):
        return "weight_scale_inv_deepgemm"
    if _is(backend, "flashinfer_cutlass") or _is(backend, "flashinfer_cutedsl"):
        return "weight_scale_inv_swizzled"
    # Versions that keep no backend on the method: the copy that was prepared is the one that is read.
    for name in ("weight_scale_inv_swizzled", "weight_scale_inv_shuffled", "weight_scale_inv_deepgemm"):
        if backend is None and getattr(layer, name, None) is not None:
            return name
    return "weight_scale_inv"


def fp8_tensors(method: Any, layer: torch.nn.Module, x: Any) -> list[torch.Tensor]:
    """What SGLang's `Fp8LinearMethod.apply` reads, by the same conditions as there."""
    if getattr(method, "use_marlin", False):
        return readable((layer.weight, getattr(layer, "weight_scale", None)))
    as_mxfp8 = getattr(method, "use_mxfp8", False) or (
        getattr(method, "block_fp8_as_mxfp8", False) and getattr(layer, "block_fp8_mxfp8_ready", False)
    )
    packed = isinstance(x, tuple) and len(x) > 1 and getattr(x[1], "dtype", None) is torch.int32
    if as_mxfp8 and packed and not _is(getattr(method, "mxfp8_dense_backend", None), "deep_gemm"):
        return readable((layer.weight, getattr(layer, "weight_scale_inv_deepgemm", None)))
    # A (q, scale) pair of the older kind keeps the block kernel; MXFP8 inputs are a class of their own.
    if as_mxfp8 and getattr(method, "block_fp8_as_mxfp8", False) and type(x) is tuple:
        as_mxfp8 = False
    if as_mxfp8:
        return readable((layer.weight, getattr(layer, _mxfp8_scale(method, layer), None)))
    if getattr(method, "block_quant", False):
        twin = getattr(layer, "_block_fp8_bf16_weight", None)
        if twin is not None:
            return readable((twin,))
        return readable((layer.weight, getattr(layer, "weight_scale_inv", None)))
    return readable((layer.weight, getattr(layer, "weight_scale", None)))


def expert_bytes(layer: torch.nn.Module, num_tokens: int, num_local: int, num_experts: int) -> int:
    """What a fused mixture of experts is expected to read of its experts for this many tokens.

    num_local: experts that this rank holds. num_experts: all of them; a token goes to `layer.top_k` of these.

    They are too many to prefetch, and chosen on the way; but what they bring pushes other weights out of L2.
    """
    held = sum(
        weight.nbytes
        for weight in layer._parameters.values()
        if weight is not None and weight.dim() > 1 and weight.shape[0] == num_local
    )
    return int(held * min(1.0, num_tokens * layer.top_k / num_experts))


def arguments(*positions: int, names: tuple[str, ...]) -> Callable[[tuple, dict], list[torch.Tensor]]:
    """Reads the tensors at these positions, or under these names when passed by keyword."""

    def read(args: tuple, kwargs: dict) -> list[torch.Tensor]:
        return readable(
            args[position] if position < len(args) else kwargs.get(name) for position, name in zip(positions, names)
        )

    return read
