"""What an operator means to the learner: does it read its tensors, look rows up in one, or only look at metadata."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from .collectives import TABLE, WAIT_TENSOR, Collective
from .experts import is_grouped

# These take a tensor for its shape, dtype or storage and read none of its bytes, but declare no alias.
_METADATA = frozenset(
    f"aten::{name}"
    for name in (
        "_unsafe_view empty_like zeros_like ones_like full_like rand_like randn_like randint_like "
        "new_empty new_zeros new_ones new_full new_empty_strided is_same_size _has_compatible_shallow_copy_type "
        "size stride numel dim sym_size sym_stride sym_numel sym_storage_offset is_contiguous is_floating_point"
    ).split()
)

# These declare an alias, but copy when they have to; under inference_mode they arrive here undecomposed.
_VIEW_OR_COPY = frozenset(
    f"aten::{name}" for name in ("to", "type_as", "contiguous", "reshape", "reshape_as", "flatten", "ravel")
)

# These read only the rows that their indices name: a window must not bring the whole table.
_ROW_LOOKUPS = frozenset(
    f"aten::{name}"
    for name in (
        "embedding embedding_renorm_ embedding_bag _embedding_bag _embedding_bag_forward_only index_select gather "
        "index _unsafe_index take take_along_dim"
    ).split()
)

# Operators of ours that say where a window is.
MARKERS = ("collective_begin", "collective_end", "window_begin", "window_end")


@dataclass(frozen=True)
class Role:
    """reads: the operator reads its tensors' bytes. row_lookup: of the first one it reads only some rows.

    view_or_copy: it reads its first tensor only if it returns another storage.
    written: positions and names of the arguments that the operator writes.
    grouped: it reads some of a stack of experts. marker: the name of the operator if it is one of MARKERS.
    """

    reads: bool = True
    row_lookup: bool = False
    view_or_copy: bool = False
    written: frozenset[int | str] = frozenset()
    collective: Collective | None = None
    is_wait: bool = False
    grouped: bool = False
    marker: str = ""

    @property
    def is_special(self) -> bool:
        """Whether more is due than running the operator, though it reads no weight for sure."""
        return bool(self.collective or self.is_wait or self.view_or_copy or self.marker)


@cache
def role_of(func: Any) -> Role:
    """The role of an operator overload; a higher-order operator has no schema and is taken to read everything."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return Role()
    if schema.name in TABLE:
        return Role(reads=False, collective=TABLE[schema.name])
    if schema.name == WAIT_TENSOR:
        return Role(reads=False, is_wait=True)
    namespace, _, name = schema.name.partition("::")
    if namespace == "dsv41":
        return Role(reads=False, marker=name if name in MARKERS else "")
    written = frozenset(
        key
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for key in (index, argument.name)
    )
    if schema.name in _VIEW_OR_COPY:
        return Role(reads=False, view_or_copy=True)
    return Role(
        reads=not func.is_view and schema.name not in _METADATA,
        row_lookup=schema.name in _ROW_LOOKUPS,
        grouped=is_grouped(name),
        written=written,
    )
