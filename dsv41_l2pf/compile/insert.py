"""Puts the windows into a graph: window_begin, the collective, window_end; and one join at the end.

Every operator gets an anchor that it only pretends to write: that orders it between the producer and the consumer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch.fx import Graph, Node

from .graph import collective_of, device_of, op_name, storages_of, usable, values_of, writes
from .weights import Weights
from .windows import StaticWindow

# Makes a node that holds an empty tensor on a device.
EmptyAnchor = Callable[[Graph, torch.device], Node]


def empty_anchor(graph: Graph, device: torch.device) -> Node:
    """For Dynamo's graph: AOTAutograd finds out what it returns."""
    return graph.call_function(torch.empty, (0,), {"device": device})


def empty_aten_anchor(graph: Graph, device: torch.device) -> Node:
    """For an ATen graph: Inductor asks every node what it returns."""
    node = graph.call_function(torch.ops.aten.empty.memory_format, ([0],), {"device": device, "pin_memory": False})
    some = next(value for other in graph.nodes if usable(other) for value in [other.meta["val"]])
    with some.fake_mode:
        node.meta["val"] = torch.empty(0, device=device)
    return node


def insert_windows(
    graph: Graph, windows: list[StaticWindow], weights: Weights, budget_bytes: int, make_empty: EmptyAnchor
) -> None:
    """Edits the graph. A window with a reason gets nothing."""
    opened = [window for window in windows if not window.reason]
    for window in opened:
        with graph.inserting_before(window.node):
            anchor = window.input
            if not _written_by(window) and (storages_of(anchor) & weights.inputs or _overlaps_itself(anchor)):
                # Writing a graph input, even as a pretence, makes CUDA graph trees give up and Inductor copy it back.
                # Writing an expanded tensor makes Inductor compute it first, and then expand it into a copy.
                anchor = make_empty(graph, device_of(anchor))
            tensors = [_at_hand(graph, weight) for weight in window.weights]
            _call(graph, torch.ops.dsv41.window_begin.default, (anchor, tensors, budget_bytes), window.node)
        if window.output is not None:
            with graph.inserting_after(window.last):
                _call(graph, torch.ops.dsv41.window_end.default, (window.output,), window.node)
    if opened:
        _insert_join(graph, opened[-1], weights.inputs, make_empty)


def _written_by(window: StaticWindow) -> bool:
    return collective_of(window.node) is not None and window.input in writes(window.node)


def _overlaps_itself(node: Node) -> bool:
    (value,) = values_of(node)
    return any(stride == 0 and size != 1 for size, stride in zip(value.shape, value.stride()))


def _at_hand(graph: Graph, weight: Node) -> Node:
    """The weight as an argument here: a get_attr node may come later in the graph."""
    if weight.op != "get_attr":
        return weight
    node = graph.get_attr(weight.target)
    node.meta = dict(weight.meta)
    return node


def _insert_join(graph: Graph, last: StaticWindow, inputs: set[int], make_empty: EmptyAnchor) -> None:
    """The join waits for the last prefetch behind everything else, at no tensor that would be dead by then."""
    output = graph.find_nodes(op="output")[0]
    counts = Counter(key for node in output.all_input_nodes for key in storages_of(node))
    for node in output.all_input_nodes:
        keys = storages_of(node)
        read_only_outside = len(node.users) == 1 and all(counts[key] == 1 for key in keys)
        if usable(node) and keys and not keys & inputs and read_only_outside:
            anchor = node
            break
    else:
        anchor = last.output
    if anchor is None:
        with graph.inserting_before(output):
            anchor = make_empty(graph, device_of(last.input))
    with graph.inserting_before(output):
        _call(graph, torch.ops.dsv41.join_windows.default, (anchor,), last.node)


def _call(graph: Graph, op: torch._ops.OpOverload, args: tuple, like: Node) -> None:
    node = graph.call_function(op, args)
    for key in ("stack_trace", "nn_module_stack"):
        if key in like.meta:
            node.meta[key] = like.meta[key]
    node.meta["val"] = node.meta["example_value"] = None


def is_placed(graph: Graph) -> bool:
    """Whether windows were put into this graph already, by a compile_backend around another one."""
    return any(op_name(node) == "dsv41::window_begin" for node in graph.nodes)
