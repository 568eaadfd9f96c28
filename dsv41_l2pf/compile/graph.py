"""Reads an FX graph: what its nodes are, and which of them are collectives.

It works on the graph that Dynamo hands to a backend (torch functions and methods, `example_value`) and on the ATen
graph behind AOTAutograd (`val`). In both, fake tensors tell what is a view of what: a view shares its base's storage.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from ..collectives import TABLE, WAIT_TENSOR, Collective, input_of, is_asynchronous, output_of
from ..weights import DEVICES, storage_key

# Collectives that an engine hides in an operator of its own: their run-time hook brackets them.
_ENGINES = ("vllm", "sglang", "sgl_kernel", "sgl_collective")
_ENGINE_KINDS = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all|broadcast")


def values_of(node: Node) -> list[torch.Tensor]:
    """The fake tensors that a node returns, flattened."""
    return list(_tensors(node.meta.get("val", node.meta.get("example_value"))))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def nodes_in(value: Any) -> list[Node]:
    """The nodes in a nested argument, in order."""
    found: list[Node] = []
    torch.fx.map_arg(value, found.append)
    return found


def storages_of(node: Node) -> set[int]:
    return {storage_key(tensor) for tensor in values_of(node)} - {0}


def usable(node: Node) -> bool:
    """Whether a node is one plain strided CPU or CUDA tensor, as our operators need it."""
    value = node.meta.get("val", node.meta.get("example_value"))
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type in DEVICES


def device_of(node: Node) -> torch.device:
    return values_of(node)[0].device


# AOTAutograd wraps an operator that writes into one of these, which returns what was written.
_FUNCTIONALISED = ("auto_functionalized", "auto_functionalized_v2")


def _is_functionalised(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") in _FUNCTIONALISED


def overload_of(node: Node) -> torch._ops.OpOverload | None:
    """The operator overload that a node calls, or None; Dynamo's graphs hold the packet of an operator."""
    if _is_functionalised(node):
        return node.args[0]
    target = node.target if node.op == "call_function" else None
    if isinstance(target, torch._ops.OpOverloadPacket):
        return getattr(target, "default", None) or getattr(target, target.overloads()[0])
    return target if isinstance(target, torch._ops.OpOverload) else None


def op_name(node: Node) -> str:
    """namespace::name of the operator that a node calls, or ''."""
    overload = overload_of(node)
    return "" if overload is None else overload._schema.name


def short_name(node: Node) -> str:
    """The name of the operator, function or method that a node calls, without its namespace."""
    name = op_name(node).partition("::")[2]
    return name or (node.target if isinstance(node.target, str) else getattr(node.target, "__name__", ""))


def collective_of(node: Node) -> Collective | None:
    return TABLE.get(op_name(node))


def is_wait(node: Node) -> bool:
    return op_name(node) == WAIT_TENSOR


def is_engine_collective(node: Node) -> bool:
    namespace, _, name = op_name(node).partition("::")
    return namespace in _ENGINES and _ENGINE_KINDS.search(name) is not None


def _arguments_of(node: Node) -> tuple[tuple, dict]:
    """The args and kwargs of the operator that a node calls."""
    if not _is_functionalised(node):
        return node.args, node.kwargs
    # The second version passes the tensors behind all written arguments in one list.
    bases = node.kwargs.get("_all_bases", [])
    written = {argument.name: bases for argument in overload_of(node)._schema.arguments if _is_written(argument)}
    return (), {**written, **node.kwargs}


def sent_by(node: Node, collective: Collective) -> list[Node]:
    """The nodes that a collective sends."""
    return nodes_in(input_of(collective, overload_of(node), *_arguments_of(node)))


def received_by(node: Node, collective: Collective) -> list[Node]:
    """The nodes that a collective fills: itself, when it returns them."""
    if _is_functionalised(node):
        return [user for user in node.users if user.target is operator.getitem]
    return nodes_in(output_of(collective, overload_of(node), node.args, node.kwargs, node))


def needs_wait(node: Node, collective: Collective) -> bool:
    """Whether what a collective fills is there only after a wait."""
    return is_asynchronous(collective, overload_of(node), *_arguments_of(node))


def _is_written(argument: torch.Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def writes(node: Node) -> list[Node]:
    """The nodes that a node writes in place."""
    if _is_functionalised(node):
        return []
    overload = overload_of(node)
    if overload is not None:
        written = []
        for index, argument in enumerate(overload._schema.arguments):
            if _is_written(argument):
                value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
                written += nodes_in(value)
        return written
    name = short_name(node)
    if node.target in _IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")):
        return nodes_in(node.args[:1])
    return nodes_in(node.kwargs.get("out"))


_IN_PLACE_OPERATORS = frozenset(
    getattr(operator, name)
    for name in "setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor imatmul".split()
)
