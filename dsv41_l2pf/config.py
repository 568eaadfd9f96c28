"""What a prefetcher is created with. This module is the only reader of the environment in the package."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .checks import is_whole, rejected

AUTO_BUDGET = -1
AUTO_IN_FLIGHT = -1
# One load of each thread of one CTA (csrc/backend.h).
LEAST_IN_FLIGHT_BYTES = 64 << 10
FORMS = ("auto", "bulk", "lines", "load", "load_keep", "load_both")
PLACEMENTS = ("auto", "in_line", "launch_order", "side_stream")
MIB = 1 << 20

_GATE = "DSV41_L2_PREFETCH"
_BUDGET = "DSV41_L2_PREFETCH_MB"
_ALL_GATHER = "DSV41_L2_PREFETCH_AG"
_FORM = "DSV41_L2_PREFETCH_FORM"
_PLACEMENT = "DSV41_L2_PREFETCH_PLACEMENT"
_IN_FLIGHT = "DSV41_L2_PREFETCH_IN_FLIGHT_KB"
_MAX_TOKENS = "DSV41_L2_PREFETCH_MAX_TOKENS"
_NVTX = "DSV41_L2_PREFETCH_NVTX"
_TUNE = "DSV41_L2_PREFETCH_TUNE"
_TUNINGS = "DSV41_L2_PREFETCH_TUNINGS"
_CACHE = "XDG_CACHE_HOME"


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where files that only save time are kept: `dsv41_l2pf` in XDG_CACHE_HOME, or in ~/.cache."""
    base = environ.get(_CACHE, "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "dsv41_l2pf"


@dataclass(frozen=True)
class Config:
    """Settings of one prefetcher.

    enabled: False installs nothing and launches nothing.
    strict: the first frozen signature without a window raises at the end of its forward.
    budget_bytes: at most this much of a window's weights is prefetched; -1 lets the library choose.
    all_gather: whether all-gathers get windows.
    form: auto, bulk, lines, load, load_keep or load_both.
    placement: auto, in_line, launch_order or side_stream.
    in_flight_bytes: at most this much is asked of memory at a time, for GPUs whose memory the network shares; at least
        65536, 0 for no cap, -1 for 128 KiB on such GPUs and none on others. Hints then become loads.
    max_tokens: forwards with more tokens are left alone.
    back_to_back: the caller says that a forward's prologue follows the last window of the one before it.
    requested: the environment asked for prefetching (DSV41_L2_PREFETCH is 1 or strict); engines act only then.
    nvtx: names forwards and windows for Nsight Systems, where torch was built with CUDA.
    tune: an engine's decode graphs are captured with and without windows, and take turns until the faster one is known.
    tunings: a file of tunings that engines load at their start, and write to; "" is none.

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
    nvtx: bool = False
    in_flight_bytes: int = AUTO_IN_FLIGHT
    tune: bool = False
    tunings: str = ""

    def __post_init__(self) -> None:
        for name in ("enabled", "strict", "all_gather", "back_to_back", "requested", "tune"):
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
        if not (is_whole(self.in_flight_bytes, AUTO_IN_FLIGHT) and _is_cap(self.in_flight_bytes)):
            raise rejected("in_flight_bytes", "bytes >= 65536, 0 for no cap, or -1 for auto", self.in_flight_bytes)
        if not isinstance(self.tunings, str):
            raise rejected("tunings", "the name of a file, or ''", self.tunings)

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
            nvtx=_choice(environ, _NVTX, ("0", "1"), "0") == "1",
            in_flight_bytes=_in_flight_bytes(environ),
            tune=_choice(environ, _TUNE, ("0", "1"), "0") == "1",
            tunings=_read(environ, _TUNINGS),
        )


@dataclass(frozen=True)
class Variable:
    """One environment variable as it is now. value: None when it is not set. effect: what it does, or "" with a
    problem. problem: why it is refused or not known, else "". is_unknown: it looks like ours, but nobody reads it.
    """

    name: str
    value: str | None
    effect: str
    problem: str = ""
    is_unknown: bool = False


def variables(environ: Mapping[str, str] = os.environ) -> list[Variable]:
    """Every variable that the package reads, then those that look like ours but are not known. Never raises."""
    found = [_variable(environ, name, effect) for name, effect in _EFFECTS.items()]
    unknown = sorted(name for name in environ if name.startswith(_GATE) and name not in _EFFECTS)
    known = "one of " + ", ".join(_EFFECTS)
    return found + [Variable(name, environ[name], "", str(rejected("variable", known, name)), True) for name in unknown]


def _variable(environ: Mapping[str, str], name: str, effect: Callable[[Mapping[str, str]], str]) -> Variable:
    value = environ.get(name)
    try:
        return Variable(name, value, effect({} if value is None else {name: value}))
    except ValueError as error:
        return Variable(name, value, "", str(error))


def _gate_effect(environ: Mapping[str, str]) -> str:
    config = Config.from_env(environ)
    if not config.requested:
        return "engines leave us alone, attach() works" if config.enabled else "off everywhere"
    return "on, and a hook or window that is missing is an error" if config.strict else "on, in engines too"


def _budget_effect(environ: Mapping[str, str]) -> str:
    num_bytes = _budget_bytes(environ)
    return "the library chooses" if num_bytes == AUTO_BUDGET else f"at most {num_bytes / MIB:g} MiB a window"


def _in_flight_effect(environ: Mapping[str, str]) -> str:
    num_bytes = _in_flight_bytes(environ)
    if num_bytes == AUTO_IN_FLIGHT:
        return "128 KiB where a GPU shares the host's memory, else no cap"
    return f"at most {num_bytes >> 10} KiB in flight" if num_bytes else "no cap"


def _all_gather_effect(environ: Mapping[str, str]) -> str:
    return "all-gathers get windows" if Config.from_env(environ).all_gather else "all-gathers get no windows"


def _tune_effect(environ: Mapping[str, str]) -> str:
    if not Config.from_env(environ).tune:
        return "engines keep the windows as planned"
    return "engines run decode graphs with and without windows in turns, then keep the faster"


def _tunings_effect(environ: Mapping[str, str]) -> str:
    path = Config.from_env(environ).tunings
    return f"engines load tunings from {path}" if path else "engines load no tunings"


_EFFECTS: dict[str, Callable[[Mapping[str, str]], str]] = {
    _GATE: _gate_effect,
    _BUDGET: _budget_effect,
    _ALL_GATHER: _all_gather_effect,
    _FORM: lambda environ: f"form {Config.from_env(environ).form}",
    _PLACEMENT: lambda environ: f"placement {Config.from_env(environ).placement}",
    _IN_FLIGHT: _in_flight_effect,
    _MAX_TOKENS: lambda environ: f"forwards of more than {Config.from_env(environ).max_tokens} tokens are left alone",
    _NVTX: lambda environ: "NVTX ranges" if Config.from_env(environ).nvtx else "no NVTX ranges",
    _TUNE: _tune_effect,
    _TUNINGS: _tunings_effect,
    _CACHE: lambda environ: f"calibrations are kept in {cache_dir(environ) / 'calibration'}",
}


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


def _is_cap(num_bytes: int) -> bool:
    return num_bytes <= 0 or num_bytes >= LEAST_IN_FLIGHT_BYTES


def _in_flight_bytes(environ: Mapping[str, str]) -> int:
    value = _read(environ, _IN_FLIGHT)
    if value in ("", "auto"):
        return AUTO_IN_FLIGHT
    if not (value.isascii() and value.isdigit() and len(value) < 12 and _is_cap(int(value) << 10)):
        raise rejected(_IN_FLIGHT, "KiB >= 64, 0 for no cap, or auto", value)
    return int(value) << 10


def _max_tokens(environ: Mapping[str, str]) -> int:
    value = _read(environ, _MAX_TOKENS)
    if not value:
        return Config.max_tokens
    if not (value.isascii() and value.isdigit() and int(value) >= 1):
        raise rejected(_MAX_TOKENS, "a whole number >= 1", value)
    return int(value)
