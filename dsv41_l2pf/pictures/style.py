"""What the pictures have in common: looks, and how they are written."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first: there is no screen)

# From dark to light, so that the order holds in grey too; told apart by colour-blind eyes.
COLOURS = ("#1b3a6b", "#b3471d", "#3f8f6b", "#8a6fb0", "#c9a227")
LINES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v")
_DPI = 130


def new_figure(width: float, height: float) -> tuple[plt.Figure, plt.Axes]:
    """A figure of so many inches with one panel without a box around it."""
    figure, axes = plt.subplots(figsize=(width, height), constrained_layout=True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: plt.Figure, path: Path) -> None:
    """Writes PNG or SVG, by the suffix, and frees the figure. SVG keeps its text as text. Raises OSError."""
    with plt.rc_context({"svg.fonttype": "none"}):
        figure.savefig(path, dpi=_DPI)
    plt.close(figure)
