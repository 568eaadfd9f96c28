"""Pictures as PNG or SVG, by the file's suffix. They read in grey: hatches, line styles and markers beside colour."""

from pathlib import Path

SUFFIXES = (".png", ".svg")


def suffix_problem(path: Path) -> str:
    """Why a picture cannot be written to `path`, or ''. Imports no matplotlib."""
    return "" if path.suffix.lower() in SUFFIXES else f"expected a name that ends with .png or .svg, got {path.name}"
