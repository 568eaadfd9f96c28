"""Finds the nodes of a graph that hold parameters and buffers, and what the user calls them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

# Dynamo says where an input comes from as Python: L['self']._modules['0']._parameters['weight'].
_SLOT = re.compile(r"_(modules|parameters|buffers)\['([^']+)'\]")


def _source_of(node: Node) -> str:
    source = getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", "")
    return name() if callable(name) else name


def weight_name(node: Node) -> str:
    """The qualified name of a parameter or buffer; the node's own when Dynamo does not say."""
    slots = _SLOT.findall(_source_of(node))
    return ".".join(name for _, name in slots) or node.name


def dynamo_weights(gm: GraphModule) -> dict[Node, str]:
    """The nodes of Dynamo's graph that hold parameters and buffers, by name."""
    own = {name: tensor for named in (gm.named_parameters(), gm.named_buffers()) for name, tensor in named}
    found = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            slots = _SLOT.findall(_source_of(node))
            is_parameter = isinstance(node.meta.get("example_value"), torch.nn.Parameter)
            if is_parameter or (slots and slots[-1][0] != "modules"):
                found[node] = weight_name(node)
        elif node.op == "get_attr" and node.target in own:
            node.meta.setdefault("example_value", own[node.target])
            found[node] = node.target
    return found


def has_subclasses(graph: Graph) -> bool:
    """Whether tensor subclasses such as DTensor hide operators from Dynamo's graph."""
    return any(
        is_traceable_wrapper_subclass(value)
        for node in graph.nodes
        for value in torch.utils._pytree.tree_leaves(node.meta.get("example_value"))
        if isinstance(value, torch.Tensor)
    )


def aten_weights(graph: Graph, static_indices: Iterable[int], dynamo_names: list[str]) -> dict[Node, str]:
    """The nodes of an ATen graph that hold static inputs: parameters, buffers, and the parts of subclasses.

    dynamo_names: the names of the inputs of Dynamo's graph, in order.
    """
    placeholders = graph.find_nodes(op="placeholder")
    return {placeholders[i]: _aten_name(placeholders[i], dynamo_names) for i in static_indices if i < len(placeholders)}


def _aten_name(node: Node, dynamo_names: list[str]) -> str:
    attributes: list[str] = []
    description = node.meta.get("desc")
    while hasattr(description, "base"):
        attributes.append(getattr(description, "attr", ""))
        description = description.base
    index = getattr(description, "idx", None)
    if index is None or index >= len(dynamo_names):
        return node.name
    attributes = [name for name in reversed(attributes) if name not in ("", "_local_tensor")]
    return ".".join([dynamo_names[index], *attributes])
