"""Names of windows for people: `l2pf window 12 (model.layers.3.mlp.down)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .report import brace, weight_names

if TYPE_CHECKING:
    from .prefetcher import Prefetcher

_MAX_CHARACTERS = 80


def short_name(names: list[str]) -> str:
    """The weights of a window as one name, without `.weight`; the first and a count when they are too many."""
    modules = list(dict.fromkeys(name.removesuffix(".weight") for name in names))
    joined = brace(modules)
    return joined if len(joined) <= _MAX_CHARACTERS else f"{modules[0]} and {len(modules) - 1} more"


def window_label(collective_index: int, names: list[str]) -> str:
    """What the window after a collective is called. names: of its weights; empty when it has no window."""
    return f"l2pf window {collective_index} ({short_name(names) if names else 'nothing planned'})"


def window_names(prefetcher: Prefetcher, model_id: int, num_tokens: int, mode: str) -> dict[int, list[str]]:
    """The names of the weights of every planned window of a signature; empty before it is learned."""
    return weight_names(prefetcher, {"num_tokens": num_tokens, "mode": mode, "model": model_id})
