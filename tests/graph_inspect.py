"""What the GPU tests ask of a captured graph. The reading itself is the demo's: `dsv41_l2pf.demo.graph_nodes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsv41_l2pf.demo.graph_nodes import CapturedGraph, Node, read_graph

PREFETCH = "l2pf_prefetch"
INLINE_PREFETCH = "l2pf_prefetch_inline"
EMULATED_COLLECTIVE = "l2pf_emulated_collective"


def capture(fn: Callable[[], Any], **kwargs: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Captures `fn` and instantiates the graph, which stays readable. kwargs: of torch.cuda.graph."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    # torch leaves its capture stream current when a capture cannot end; the outer block takes it back.
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, **kwargs):
        result = fn()
    graph.instantiate()
    return graph, result


def sources(graph: CapturedGraph, node: Node, *, launch_order: bool) -> set[int]:
    """Where the launch-order edges, or the full edges, into `node` come from."""
    return {
        edge.source
        for edge in graph.edges_into(node)
        if (edge.is_launch_order if launch_order else edge.is_full)
    }


def assert_behind(graph: CapturedGraph, nodes: list[Node], overlapped: list[Node]) -> None:
    """nodes[i] may start once overlapped[i] has, and waits for no other kernel than prefetches before it."""
    assert len(nodes) == len(overlapped)
    earlier: set[int] = set()
    for node, kernel in zip(nodes, overlapped):
        assert sources(graph, node, launch_order=True) == {kernel.index}, (node, kernel)
        assert sources(graph, node, launch_order=False) <= earlier, node
        earlier.add(node.index)


def assert_in_line(graph: CapturedGraph, nodes: list[Node], overlapped: list[Node]) -> None:
    """Each node takes the place of the kernel it is behind: what followed that follows the node."""
    assert_behind(graph, nodes, overlapped)
    for node, kernel in zip(nodes, overlapped):
        assert sources(graph, node, launch_order=False) == set()
        assert {edge.target for edge in graph.edges_from(kernel)} == {node.index}, kernel


def assert_on_branches(graph: CapturedGraph, nodes: list[Node], overlapped: list[Node]) -> None:
    """What follows a kernel does not wait for the node behind it; the node waits for the one before."""
    assert_behind(graph, nodes, overlapped)
    previous: set[int] = set()
    for node, kernel in zip(nodes, overlapped):
        assert sources(graph, node, launch_order=False) == previous, node
        assert len(graph.edges_from(kernel)) == 2, kernel
        previous = {node.index}


def assert_joined(graph: CapturedGraph, node: Node) -> None:
    """Something other than a prefetch waits for the end of `node`."""
    followers = [edge for edge in graph.edges_from(node) if PREFETCH not in graph.nodes[edge.target].name]
    assert followers, "nothing waits for the last prefetch"
    assert all(edge.is_full for edge in followers)


__all__ = [
    "EMULATED_COLLECTIVE",
    "INLINE_PREFETCH",
    "PREFETCH",
    "assert_behind",
    "assert_in_line",
    "assert_joined",
    "assert_on_branches",
    "capture",
    "read_graph",
    "sources",
]
