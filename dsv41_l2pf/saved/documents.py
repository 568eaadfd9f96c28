"""Tells what a saved file is, checks it and makes it readable."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from .. import tuning
from ..calibration import Calibration, load_calibration
from ..report import largest_signature, signature_table, window_table
from .calibration_table import calibration_table
from .tuning_table import tuning_table


@dataclass(frozen=True)
class Document:
    """A file that was read. kind: calibration, tunings or status. content: the checked values. findings: what is off.
    calibration: of a file of that kind.
    """

    kind: str
    content: dict[str, Any]
    readable: RenderableType
    findings: tuple[str, ...] = ()
    calibration: Calibration | None = None


def read_document(path: Path) -> Document:
    """Reads a calibration, saved tunings, or the JSON of `Prefetcher.status()` or of the library's `status()`.

    Raises ValueError when it is none of them, naming what is wrong, and OSError when it cannot be read.
    """
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got {error}") from None
    keys = set(found) if isinstance(found, dict) else set()
    if "tunings" in keys:
        return _tunings(path)
    if {"gpu", "fill_gbps"} <= keys:
        return _calibration(path)
    if "prefetchers" in keys or "signatures" in keys:
        return _status(path, found)
    raise ValueError(f"{path}: expected a calibration, tunings or a status, got {_described(found)}")


def _described(found: Any) -> str:
    return f"an object with {', '.join(sorted(found)[:5])}" if isinstance(found, dict) else type(found).__name__


def _tunings(path: Path) -> Document:
    tunings = tuning.load(path)
    content = {"tunings": [asdict(entry) for entry in tunings]}
    return Document("tunings", content, Group(*map(tuning_table, tunings)))


def _calibration(path: Path) -> Document:
    calibration = load_calibration(path)
    return Document("calibration", asdict(calibration), calibration_table(calibration), calibration=calibration)


def _status(path: Path, found: dict) -> Document:
    prefetchers = found["prefetchers"] if "prefetchers" in found else [found]
    parts: list[RenderableType] = []
    findings: list[str] = []
    try:
        for prefetcher in prefetchers:
            parts += _of_prefetcher({"version": found.get("version", "of unknown version"), **prefetcher}, findings)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: expected a status of this library, got one without {error}") from None
    return Document("status", found, Group(*parts or [Text("no prefetcher")]), tuple(findings))


def _of_prefetcher(prefetcher: dict, findings: list[str]) -> list[RenderableType]:
    if prefetcher.get("reason"):
        findings.append(prefetcher["reason"])
    for signature in prefetcher["signatures"]:
        if signature["reason"]:
            findings.append(f"mode {signature['mode']}, {signature['num_tokens']} tokens: {signature['reason']}")
    parts: list[RenderableType] = [signature_table(prefetcher)]
    largest = largest_signature(prefetcher)
    if largest is not None:
        parts.append(window_table(largest, {}))
    return parts
