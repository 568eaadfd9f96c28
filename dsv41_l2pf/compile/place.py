"""Finds and inserts the windows of one graph: a pure function of graph and config."""

from __future__ import annotations

from torch.fx import GraphModule, Node

from ..config import AUTO_BUDGET, Config
from .graph import collective_of, is_engine_collective
from .insert import EmptyAnchor, empty_anchor, empty_aten_anchor, insert_windows, is_placed
from .names import aten_weights, dynamo_weights
from .report import GraphReport, WindowReport
from .weights import Weights
from .windows import StaticWindow, find_windows, num_bytes_of


def place_in_dynamo(gm: GraphModule, config: Config) -> GraphReport:
    """Edits the graph that Dynamo hands to a backend."""
    return _place(gm, dynamo_weights(gm), config, empty_anchor)


def place_in_aten(gm: GraphModule, static_indices: list[int], names: list[str], config: Config) -> GraphReport:
    """Edits a forward graph behind AOTAutograd. names: those of the inputs of Dynamo's graph."""
    return _place(gm, aten_weights(gm.graph, static_indices, names), config, empty_aten_anchor)


def _place(gm: GraphModule, candidates: dict[Node, str], config: Config, make_empty: EmptyAnchor) -> GraphReport:
    if not config.enabled:
        return GraphReport(reason="off: DSV41_L2_PREFETCH=0 or Config(enabled=False)")
    if is_placed(gm.graph):
        return GraphReport(reason="another backend of ours has edited it")
    weights = Weights(gm.graph, candidates)
    windows = find_windows(gm.graph, weights, config)
    report = GraphReport(
        tuple(_report_of(window, weights, config.budget_bytes) for window in windows) + _nested(gm),
        weights.rows,
        weights.routed,
    )
    if report.num_windows:
        insert_windows(gm.graph, windows, weights, config.budget_bytes, make_empty)
        gm.recompile()
    return report


def _report_of(window: StaticWindow, weights: Weights, budget_bytes: int) -> WindowReport:
    num_bytes = sum(map(num_bytes_of, window.weights))
    planned_bytes = num_bytes if budget_bytes == AUTO_BUDGET else min(num_bytes, budget_bytes)
    names = tuple(map(weights.name, window.weights))
    return WindowReport(window.kind, names, num_bytes, planned_bytes, window.reason)


def _nested(gm: GraphModule) -> tuple[WindowReport, ...]:
    """The collectives in graphs inside this one: a higher-order operator decides when those run."""
    return tuple(
        WindowReport("nested", reason="in a nested graph")
        for module in gm.modules()
        if module is not gm and isinstance(module, GraphModule)
        for node in module.graph.nodes
        if collective_of(node) is not None or is_engine_collective(node)
    )
