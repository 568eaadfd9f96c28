"""The collective operators that a dispatch mode can meet: their kind, their tensors, and when their result is ready."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
RETURNED = ""  # the output is what the operator returns


@dataclass(frozen=True)
class Collective:
    """kind: the word `collective_begin` takes. input, output: argument names in the operator's schema.

    waits: the result is ready after `_c10d_functional.wait_tensor`, not after the call.
    """

    kind: str
    input: str
    output: str = RETURNED
    waits: bool = False


def _c10d(kind: str, input: str, output: str) -> Collective:
    return Collective(kind, input, output)


def _functional(kind: str, input: str = "input") -> Collective:
    return Collective(kind, input, RETURNED, waits=True)


TABLE = {
    "c10d::allreduce_": _c10d("all_reduce", "tensors", "tensors"),
    "c10d::allreduce_coalesced_": _c10d("all_reduce", "tensors", "tensors"),
    "c10d::allgather_": _c10d("all_gather", "input_tensors", "output_tensors"),
    "c10d::allgather_coalesced_": _c10d("all_gather", "input_list", "output_lists"),
    "c10d::allgather_into_tensor_coalesced_": _c10d("all_gather", "inputs", "outputs"),
    "c10d::_allgather_base_": _c10d("all_gather", "input_tensor", "output_tensor"),
    "c10d::reduce_scatter_": _c10d("reduce_scatter", "input_tensors", "output_tensors"),
    "c10d::reduce_scatter_tensor_coalesced_": _c10d("reduce_scatter", "inputs", "outputs"),
    "c10d::_reduce_scatter_base_": _c10d("reduce_scatter", "input_tensor", "output_tensor"),
    "c10d::alltoall_": _c10d("all_to_all", "input_tensors", "output_tensors"),
    "c10d::alltoall_base_": _c10d("all_to_all", "input", "output"),
    "c10d::broadcast_": _c10d("broadcast", "tensors", "tensors"),
    "_c10d_functional::all_reduce": _functional("all_reduce"),
    "_c10d_functional::all_reduce_": _functional("all_reduce"),
    "_c10d_functional::all_reduce_coalesced": _functional("all_reduce", "inputs"),
    "_c10d_functional::all_reduce_coalesced_": _functional("all_reduce", "inputs"),
    "_c10d_functional::all_gather_into_tensor": _functional("all_gather"),
    "_c10d_functional::all_gather_into_tensor_out": _functional("all_gather"),
    "_c10d_functional::all_gather_into_tensor_coalesced": _functional("all_gather", "inputs"),
    "_c10d_functional::reduce_scatter_tensor": _functional("reduce_scatter"),
    "_c10d_functional::reduce_scatter_tensor_out": _functional("reduce_scatter"),
    "_c10d_functional::reduce_scatter_tensor_coalesced": _functional("reduce_scatter", "inputs"),
    "_c10d_functional::all_to_all_single": _functional("all_to_all"),
    "_c10d_functional::broadcast": _functional("broadcast"),
    "_c10d_functional::broadcast_": _functional("broadcast"),
    "symm_mem::one_shot_all_reduce": Collective("all_reduce", "input"),
    "symm_mem::one_shot_all_reduce_out": Collective("all_reduce", "input"),
    "symm_mem::one_shot_all_reduce_copy": Collective("all_reduce", "local_input"),
    "symm_mem::one_shot_all_reduce_copy_out": Collective("all_reduce", "local_input"),
    "symm_mem::two_shot_all_reduce_": Collective("all_reduce", "input"),
    "symm_mem::two_shot_all_reduce_out": Collective("all_reduce", "input"),
    "symm_mem::multimem_all_reduce_": Collective("all_reduce", "input"),
    "symm_mem::multimem_one_shot_all_reduce": Collective("all_reduce", "input"),
    "symm_mem::multimem_one_shot_all_reduce_out": Collective("all_reduce", "input"),
    "symm_mem::multimem_all_gather_out": Collective("all_gather", "input"),
    "symm_mem::reduce_scatter_out": Collective("reduce_scatter", "input"),
    "symm_mem::all_to_all_vdev": Collective("all_to_all", "input", "out"),
    "symm_mem::all_to_all_vdev_2d": Collective("all_to_all", "input", "out"),
    "symm_mem::nvshmem_all_to_all": Collective("all_to_all", "input"),
    "symm_mem::nvshmem_broadcast": Collective("broadcast", "input"),
    "dsv41::emulated_all_reduce": Collective("all_reduce", "data", "data"),
}

WAIT_TENSOR = "_c10d_functional::wait_tensor"


@cache
def _positions(func: torch._ops.OpOverload) -> dict[str, int]:
    return {argument.name: index for index, argument in enumerate(func._schema.arguments)}


def _argument(func: torch._ops.OpOverload, name: str, args: tuple, kwargs: dict, default: Any = None) -> Any:
    if name in kwargs:
        return kwargs[name]
    index = _positions(func)[name]
    return args[index] if index < len(args) else default


def input_of(collective: Collective, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
    """The tensor, or the nested list of tensors, that the call sends."""
    return _argument(func, collective.input, args, kwargs)


def output_of(collective: Collective, func: torch._ops.OpOverload, args: tuple, kwargs: dict, result: Any) -> Any:
    """The tensor, or the nested list of tensors, that the call fills."""
    if collective.output == RETURNED:
        return result
    return _argument(func, collective.output, args, kwargs)


def is_asynchronous(collective: Collective, func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> bool:
    """Whether the result is ready only after a wait: functional operators, and c10d ones called with async_op."""
    if collective.waits:
        return True
    # Dispatch drops trailing arguments that equal their default, and the default of async_op is True.
    return "async_op" in _positions(func) and bool(_argument(func, "async_op", args, kwargs, True))
