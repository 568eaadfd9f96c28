"""Finds the windows of a graph: which weights are read after which collective, without running anything."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import Graph, Node

from ..collectives import Collective
from ..config import AUTO_BUDGET, Config
from .graph import (
    collective_of,
    device_of,
    is_engine_collective,
    is_wait,
    needs_wait,
    op_name,
    received_by,
    sent_by,
    usable,
    values_of,
)
from .report import GRADIENTS
from .weights import Weights


@dataclass
class StaticWindow:
    """One collective of a graph.

    input: the node that is sent, or None. output: the node whose value is there when the collective is done, or None
    when another graph waits for it; last: the node behind which it is done. weights: those read after it and before the
    next collective, in reading order, cut to the budget. reason: why it gets no window, or ''.
    """

    node: Node
    kind: str
    input: Node | None = None
    output: Node | None = None
    last: Node | None = None
    weights: list[Node] = field(default_factory=list)
    reason: str = ""


def find_windows(graph: Graph, weights: Weights, config: Config) -> list[StaticWindow]:
    """Every collective of the graph, in order; those without a window say why."""
    windows: list[StaticWindow] = []
    bracketed_by_model = False
    for node in graph.nodes:
        name = op_name(node)
        if name in ("dsv41::collective_begin", "dsv41::window_begin"):
            bracketed_by_model = True
        elif name in ("dsv41::collective_end", "dsv41::window_end"):
            bracketed_by_model = False
        elif is_engine_collective(node):
            windows.append(StaticWindow(node, name, reason="inside an engine's operator: left to the run-time hook"))
        elif (collective := collective_of(node)) is not None:
            window = _window_of(node, collective, config)
            if bracketed_by_model:
                window.reason = "bracketed already"
            windows.append(window)
        else:
            read = weights.read_by(node)
            if windows:
                seen = windows[-1].weights
                seen += [weight for weight in read if weight not in seen]
    for window in windows:
        _settle(window, config)
    return windows


def _window_of(node: Node, collective: Collective, config: Config) -> StaticWindow:
    window = StaticWindow(node, collective.kind)
    sent = [sent_node for sent_node in sent_by(node, collective) if usable(sent_node)]
    if not sent:
        window.reason = "it sends no plain CPU or CUDA tensor"
        return window
    window.input = sent[0]
    if any(value.requires_grad and not value.is_leaf for value in (*values_of(sent[0]), *values_of(node))):
        window.reason = GRADIENTS
    elif collective.kind == "all_gather" and not config.all_gather:
        window.reason = "all-gathers are off"
    elif (num_tokens := _num_tokens(sent[0])) > config.max_tokens:
        window.reason = f"{num_tokens} tokens, more than max_tokens = {config.max_tokens}"
    if needs_wait(node, collective):
        window.output = window.last = _last_wait(node)
    else:
        received = [out for out in received_by(node, collective) if usable(out)]
        window.output = received[0] if received else None
        window.last = window.output if window.output in node.users else node
    return window


def _num_tokens(node: Node) -> int:
    """The tokens that activations [..., hidden] carry; 0 when a dimension is symbolic."""
    shape = values_of(node)[0].shape
    if not all(isinstance(size, int) for size in shape):
        return 0
    return values_of(node)[0].numel() // max(shape[-1], 1) if shape else 1


def _last_wait(node: Node) -> Node | None:
    """The last of the waits for a collective's results that follow each other without another use in between."""
    results = {node, *(user for user in node.users if _is_getitem(user))}
    last = None
    following = node.next
    while following.op != "root":
        if is_wait(following) and following.args[0] in results:
            last = following
        elif last is not None and not _is_getitem(following):
            break
        following = following.next
    return last


def _is_getitem(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _settle(window: StaticWindow, config: Config) -> None:
    """Cuts the weights to the budget, and says why a window without any stays closed."""
    if window.reason:
        window.weights = []
        return
    device = device_of(window.input)
    window.weights = _within_budget([w for w in window.weights if device_of(w) == device], config.budget_bytes)
    if not window.weights:
        window.reason = "the budget is 0" if config.budget_bytes == 0 else "no weight is read after it in its graph"


def _within_budget(weights: list[Node], budget_bytes: int) -> list[Node]:
    """The weights whose first byte is within the budget; the operator cuts the last one."""
    if budget_bytes == AUTO_BUDGET:
        return weights
    kept, num_bytes = [], 0
    for weight in weights:
        if num_bytes >= budget_bytes:
            break
        kept.append(weight)
        num_bytes += num_bytes_of(weight)
    return kept


def num_bytes_of(weight: Node) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in values_of(weight))
