"""Reads a captured CUDA graph through the driver: its nodes, their kernels, and the edges between them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

_KERNEL = 0
_KINDS = (
    "kernel memcpy memset host child_graph empty wait_event event_record semaphore_signal semaphore_wait mem_alloc "
    "mem_free batch_mem_op conditional"
).split()

LAUNCH_ORDER_PORT = 2  # CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER
PROGRAMMATIC = 1  # CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC


class _EdgeData(ctypes.Structure):
    """CUgraphEdgeData."""

    _fields_ = [
        ("from_port", ctypes.c_ubyte),
        ("to_port", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    ]


class _KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("kernel_params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    ]


@dataclass(frozen=True)
class Node:
    """index: position in `CapturedGraph.nodes`. name: of a kernel, mangled; else ''. grid, block: of a kernel."""

    index: int
    kind: str
    name: str = ""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()


@dataclass(frozen=True)
class Edge:
    """source, target: positions in `CapturedGraph.nodes`."""

    source: int
    target: int
    from_port: int
    type: int

    @property
    def is_launch_order(self) -> bool:
        """The target may start once every CTA of the source has."""
        return self.from_port == LAUNCH_ORDER_PORT and self.type == PROGRAMMATIC

    @property
    def is_full(self) -> bool:
        """The target waits for the end of the source."""
        return self.from_port == 0 and self.type == 0


@dataclass(frozen=True)
class CapturedGraph:
    nodes: list[Node]
    edges: list[Edge]

    def kernels(self, part_of_name: str) -> list[Node]:
        """The kernel nodes whose mangled name contains `part_of_name`, predecessors first."""
        rank = self._ranks()
        found = [node for node in self.nodes if node.kind == "kernel" and part_of_name in node.name]
        return sorted(found, key=lambda node: rank[node.index])

    def edges_into(self, node: Node) -> list[Edge]:
        return [edge for edge in self.edges if edge.target == node.index]

    def edges_from(self, node: Node) -> list[Edge]:
        return [edge for edge in self.edges if edge.source == node.index]

    def _ranks(self) -> dict[int, int]:
        """Length of the longest path to each node. The driver promises no order of its list."""
        waits_for = {node.index: 0 for node in self.nodes}
        for edge in self.edges:
            waits_for[edge.target] += 1
        ready = [index for index, count in waits_for.items() if count == 0]
        rank = dict.fromkeys(ready, 0)
        followers: dict[int, list[int]] = {node.index: [] for node in self.nodes}
        for edge in self.edges:
            followers[edge.source].append(edge.target)
        while ready:
            index = ready.pop()
            for follower in followers[index]:
                rank[follower] = max(rank.get(follower, 0), rank[index] + 1)
                waits_for[follower] -= 1
                if waits_for[follower] == 0:
                    ready.append(follower)
        return rank


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *args: Any) -> None:
    result = getattr(_driver(), name)(*args)
    if result:
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(result, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()} ({result})")


def _kernel_name(params: _KernelNodeParams) -> str:
    name = ctypes.c_char_p()
    if params.func:
        _call("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(params.func))
    else:
        _call("cuKernelGetName", ctypes.byref(name), ctypes.c_void_p(params.kern))
    return (name.value or b"").decode()


def _node(index: int, handle: int) -> Node:
    kind = ctypes.c_int()
    _call("cuGraphNodeGetType", ctypes.c_void_p(handle), ctypes.byref(kind))
    word = _KINDS[kind.value] if kind.value < len(_KINDS) else f"kind {kind.value}"
    if kind.value != _KERNEL:
        return Node(index, word)
    params = _KernelNodeParams()
    _call("cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(handle), ctypes.byref(params))
    return Node(index, word, _kernel_name(params), tuple(params.grid), tuple(params.block))


def read_graph(graph: torch.cuda.CUDAGraph | int) -> CapturedGraph:
    """The nodes and edges of a captured graph. graph: one made with `keep_graph=True`, or a raw CUgraph handle.

    Raises RuntimeError naming the driver's call and error.
    """
    raw = ctypes.c_void_p(graph if isinstance(graph, int) else graph.raw_cuda_graph())
    num_nodes = ctypes.c_size_t()
    _call("cuGraphGetNodes", raw, None, ctypes.byref(num_nodes))
    if num_nodes.value == 0:
        return CapturedGraph([], [])
    handles = (ctypes.c_void_p * num_nodes.value)()
    _call("cuGraphGetNodes", raw, handles, ctypes.byref(num_nodes))
    index_of = {handle: index for index, handle in enumerate(handles)}
    nodes = [_node(index, handle) for handle, index in index_of.items()]

    num_edges = ctypes.c_size_t()
    _call("cuGraphGetEdges_v2", raw, None, None, None, ctypes.byref(num_edges))
    sources, targets = (ctypes.c_void_p * num_edges.value)(), (ctypes.c_void_p * num_edges.value)()
    data = (_EdgeData * num_edges.value)()
    if num_edges.value:
        _call("cuGraphGetEdges_v2", raw, sources, targets, data, ctypes.byref(num_edges))
    edges = [
        Edge(index_of[source], index_of[target], datum.from_port, datum.type)
        for source, target, datum in zip(sources, targets, data)
    ]
    return CapturedGraph(nodes, edges)
