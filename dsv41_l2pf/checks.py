"""The one form that complaints about values take: name: expected this, got that."""

from __future__ import annotations

import math


def rejected(name: str, expected: str, got: object) -> ValueError:
    """The error to raise for a value."""
    return ValueError(f"{name}: expected {expected}, got {got!r}")


def require(holds: bool, name: str, expected: str, got: object) -> None:
    """Raises ValueError unless `holds`."""
    if not holds:
        raise rejected(name, expected, got)


def is_whole(value: object, least: int) -> bool:
    """Whether `value` is an int of at least `least` that the library's 64 bits hold; a bool is none."""
    return type(value) is int and least <= value < 1 << 63


def is_number(value: object) -> bool:
    """Whether `value` is a finite int or float; a bool is neither."""
    return type(value) in (int, float) and math.isfinite(value)
