"""Timeline of one step: collectives, the windows behind them, and the reads that follow, with their bytes."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes

from ..predict import MIB
from ..trace.slices import COLLECTIVES, READS, WINDOWS, Slice
from .style import COLOURS, new_figure, save

# track -> height of its row, colour, hatch
_ROWS = {
    COLLECTIVES: (2, "0.75", ""),
    WINDOWS: (1, COLOURS[4], "///"),
    READS: (0, COLOURS[0], ""),
}
_HEIGHT = 0.62


def draw_timeline(path: Path, slices: list[Slice], title: str, max_collectives: int = 10) -> None:
    """Draws the first `max_collectives` collectives of a traced step."""
    collectives = [slice for slice in slices if slice.track == COLLECTIVES]
    end_us = max(slice.end_us for slice in slices)
    cut_us = collectives[max_collectives].begin_us if len(collectives) > max_collectives else end_us
    figure, axes = new_figure(13, 4.8)
    for slice in slices:
        if slice.track in _ROWS and slice.begin_us < cut_us:
            _draw_slice(axes, slice, cut_us)
    heights = [row for row, _colour, _hatch in _ROWS.values()]
    axes.set_yticks(heights, ["collectives", "windows:\nprefetching into L2", "between collectives:\nreads of weights"])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(-1.5, 2.5)
    axes.set_xlim(0, cut_us)
    rest = "" if cut_us == end_us else f" (the step goes on to {end_us:.0f} us)"
    axes.set_xlabel(f"us since the forward began{rest}")
    axes.set_title(title, loc="left")
    axes.grid(axis="x", color="0.92")
    axes.set_axisbelow(True)
    save(figure, path)


def _draw_slice(axes: Axes, slice: Slice, cut_us: float) -> None:
    row, colour, hatch = _ROWS[slice.track]
    axes.broken_barh(
        [(slice.begin_us, min(slice.duration_us, cut_us - slice.begin_us))],
        (row - _HEIGHT / 2, _HEIGHT),
        facecolor=colour,
        hatch=hatch,
        edgecolor="white" if slice.track == READS else "black",
        linewidth=0.5,
    )
    middle_us = slice.begin_us + slice.duration_us / 2
    if slice.track == COLLECTIVES:
        axes.text(middle_us, row, slice.name.removeprefix("all_reduce "), ha="center", va="center", fontsize=8)
    elif slice.track == WINDOWS:
        num_bytes = min(slice.arguments["window_bytes"], slice.arguments["budget_bytes"])
        axes.text(middle_us, row + _HEIGHT / 2 + 0.04, f"{num_bytes / MIB:.1f} MiB", ha="center", fontsize=8)
    elif slice.arguments.get("read_bytes"):
        # Names are longer than most bars: they lean below them.
        look = {"ha": "right", "va": "top", "rotation": 25, "rotation_mode": "anchor", "fontsize": 8}
        axes.text(middle_us, row - _HEIGHT / 2 - 0.08, slice.name, **look)
