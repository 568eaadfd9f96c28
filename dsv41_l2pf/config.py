"""What a prefetcher is created with. This module is the only reader of the environment in the package."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .checks import is_whole, rejected

AUTO_BUDGET = -1
FORMS = ("auto", "bulk", "lines", "load", "load_both")
PLACEMENTS = ("auto", "launch_order", "side_stream")
MIB = 1 << 20

_GATE = "DSV41_L2_PREFETCH"
_BUDGET = "DSV41_L2_PREFETCH_MB"
_ALL_GATHER = "DSV41_L2_PREFETCH_AG"
_FORM = "DSV41_L2_PREFETCH_FORM"
_PLACEMENT = "DSV41_L2_PREFETCH_PLACEMENT"
_MAX_TOKENS = "DSV41_L2_PREFETCH_MAX_TOKENS"


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where files that only save time are kept: `dsv41_l2pf` in XDG_CACHE_HOME, or in ~/.cache."""
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "dsv41_l2pf"


@dataclass(frozen=True)
class Config:
    """Settings of one prefetcher.

    enabled: False installs nothing and launches nothing.
    strict: the first frozen signature without a window raises at the end of its forward.
    budget_bytes: at most this much of a window's weights is prefetched; -1 lets the library choose.
    all_gather: whether all-gathers get windows.
    form: auto, bulk, lines, load or load_both. placement: auto, launch_order or side_stream.
    max_tokens: forwards with more tokens are left alone.
    back_to_back: the caller says that a forward's prologue follows the last window of the one before it.
    requested: the environment asked for prefetching (DSV41_L2_PREFETCH is 1 or strict); engines act only then.

    Raises ValueError naming the field, the value and what is allowed.
    """

    enabled: bool = True
    strict: bool = False
    budget_bytes: int = AUTO_BUDGET
    all_gather: bool = True
    form: str = "auto"
    placement: str = "auto"
    max_tokens: int = 256
    back_to_back: bool = False
    requested: bool = False

    def __post_init__(self) -> None:
        for name in ("enabled", "strict", "all_gather", "back_to_back", "requested"):
            if not isinstance(getattr(self, name), bool):
                raise rejected(name, "True or False", getattr(self, name))
        if not is_whole(self.budget_bytes, AUTO_BUDGET):
            raise rejected("budget_bytes", "bytes >= 0, or -1 for auto", self.budget_bytes)
        if self.form not in FORMS:
            raise rejected("form", "one of " + ", ".join(FORMS), self.form)
        if self.placement not in PLACEMENTS:
            raise rejected("placement", "one of " + ", ".join(PLACEMENTS), self.placement)
        if not is_whole(self.max_tokens, 1):
            raise rejected("max_tokens", "a whole number >= 1", self.max_tokens)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """Reads the DSV41_L2_PREFETCH* variables; an unset or empty one keeps the default.

        Raises ValueError naming the variable, the value and what is allowed.
        """
        gate = _choice(environ, _GATE, ("0", "1", "strict"), "")
        return cls(
            enabled=gate != "0",
            strict=gate == "strict",
            budget_bytes=_budget_bytes(environ),
            all_gather=_choice(environ, _ALL_GATHER, ("0", "1"), "1") == "1",
            form=_choice(environ, _FORM, FORMS, "auto"),
            placement=_choice(environ, _PLACEMENT, PLACEMENTS, "auto"),
            max_tokens=_max_tokens(environ),
            requested=gate in ("1", "strict"),
        )


def _read(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()


def _choice(environ: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = _read(environ, name)
    if value and value not in allowed:
        raise rejected(name, "one of " + ", ".join(allowed), value)
    return value or default


def _budget_bytes(environ: Mapping[str, str]) -> int:
    value = _read(environ, _BUDGET)
    if value in ("", "auto"):
        return AUTO_BUDGET
    try:
        mib = float(value)
    except ValueError:
        mib = math.nan
    if not (math.isfinite(mib) and 0 <= mib <= 1 << 20):
        raise rejected(_BUDGET, "MiB a window (a number from 0 to 1048576), or auto", value)
    return int(mib * MIB)


def _max_tokens(environ: Mapping[str, str]) -> int:
    value = _read(environ, _MAX_TOKENS)
    if not value:
        return Config.max_tokens
    if not (value.isascii() and value.isdigit() and int(value) >= 1):
        raise rejected(_MAX_TOKENS, "a whole number >= 1", value)
    return int(value)
