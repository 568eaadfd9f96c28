"""Bars of what operators cost the host."""

from __future__ import annotations

from pathlib import Path

from .style import new_figure, save


def draw_costs(path: Path, title: str, cost_us: dict[str, float]) -> None:
    """One bar a name, in us."""
    figure, axes = new_figure(9, 1.4 + 0.36 * len(cost_us))
    bars = axes.barh(list(cost_us), list(cost_us.values()), height=0.6, color="0.75", edgecolor="black", linewidth=0.6)
    axes.bar_label(bars, fmt=" %.2f us", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(cost_us.values()))
    axes.set_xlabel("host time, us")
    axes.set_title(title, loc="left")
    save(figure, path)
