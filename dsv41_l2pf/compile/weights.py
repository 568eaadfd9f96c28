"""Which weights a graph has, and which of them an operator reads."""

from __future__ import annotations

import operator
import re

import torch
from torch.fx import Graph, Node

from ..experts import is_grouped, is_routed
from .graph import nodes_in, op_name, short_name, storages_of, usable, values_of, writes

# These take a tensor for its shape, dtype or storage and read none of its bytes.
_METADATA = re.compile(
    r"_?(new_)?(empty|zeros|ones|full|rand|randn|randint)(_like|_strided|_permuted)?|new_tensor|size|stride|numel|dim|"
    r"sym_size|sym_stride|sym_numel|is_contiguous|is_floating_point|is_same_size"
)

# These read only the rows that their indices name.
_ROW_LOOKUPS = frozenset(
    "embedding embedding_bag _embedding_bag _embedding_bag_forward_only index_select gather index _unsafe_index "
    "take take_along_dim".split()
)


class Weights:
    """The parameters and buffers of a graph that it does not write.

    inputs: the storages that the graph gets from outside. rows: the names of weights that were read by row only.
    routed: those of which a router chose what was read.
    """

    def __init__(self, graph: Graph, candidates: dict[Node, str]) -> None:
        """candidates: the nodes that hold parameters and buffers, with their names."""
        written = {key for node in graph.nodes for target in writes(node) for key in storages_of(target)}
        self._names = candidates
        self._nodes = {node for node in candidates if usable(node) and not storages_of(node) & written}
        self._storages = {key for node in self._nodes for key in storages_of(node)}
        self._read: set[Node] = set()
        self._rows: dict[Node, None] = {}
        self._routed: dict[Node, None] = {}
        self.inputs = {
            key for node in graph.nodes if node.op in ("placeholder", "get_attr") for key in storages_of(node)
        }

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(self.name(node) for node in self._rows if node not in self._read)

    @property
    def routed(self) -> tuple[str, ...]:
        return tuple(map(self.name, self._routed))

    def name(self, node: Node) -> str:
        return self._names.get(node, node.name)

    def read_by(self, node: Node) -> list[Node]:
        """The weights whose bytes a node reads, in argument order. Those read in part count as `rows` or `routed`."""
        if node.op not in ("call_function", "call_method", "call_module"):
            return []
        if op_name(node).startswith("dsv41::") or _METADATA.fullmatch(short_name(node)):
            return []
        returned = storages_of(node)
        found: dict[Node, None] = {}
        for position, argument in enumerate(nodes_in((node.args, node.kwargs))):
            if not storages_of(argument) & self._storages - returned:
                continue  # no weight; or only viewed: the result has its storage
            weight = self._viewed_by(argument)
            if weight is None:
                continue
            read, whole = values_of(argument)[0], values_of(weight)[0]
            by_row = _looks_up_rows(node, position)
            if is_grouped(short_name(node)) or is_routed(self.name(weight), read, whole.shape, by_row):
                self._routed[weight] = None
            elif by_row:
                self._rows[weight] = None
            else:
                found[weight] = None
        self._read |= found.keys()
        return list(found)

    def _viewed_by(self, node: Node) -> Node | None:
        """The weight that a node is, or is a view of. Several weights may share one storage."""
        while node not in self._nodes:
            shared = storages_of(node)
            node = next((base for base in node.all_input_nodes if storages_of(base) & shared), None)
            if node is None:
                return None
        return node


def _looks_up_rows(node: Node, position: int) -> bool:
    if node.target is torch.nn.functional.embedding or node.target is torch.nn.functional.embedding_bag:
        return position == 1
    return position == 0 and (short_name(node) in _ROW_LOOKUPS or node.target is operator.getitem)
