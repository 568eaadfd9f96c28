"""Saving by window: what a window of a given length saves, from the paper model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..predict import MIB, Gpu
from .style import COLOURS, LINES, MARKERS, new_figure, save

_NUM_POINTS = 60


def draw_saving(path: Path, gpus: Sequence[Gpu], weight_bytes: int, windows_us: Sequence[float]) -> None:
    """One band a GPU, from the cautious to the hopeful figure; markers at the windows that were asked for."""
    figure, axes = new_figure(8, 4.8)
    longest_us = 1.1 * max(windows_us)
    lengths_us = [longest_us * i / (_NUM_POINTS - 1) for i in range(_NUM_POINTS)]
    for gpu, colour, line, marker in zip(gpus, COLOURS, LINES, MARKERS):
        low = [gpu.low.saved_us(weight_bytes, length_us) for length_us in lengths_us]
        high = [gpu.high.saved_us(weight_bytes, length_us) for length_us in lengths_us]
        axes.fill_between(lengths_us, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(lengths_us, high, color=colour, linestyle=line, linewidth=0.8)
        axes.plot(lengths_us, low, color=colour, linestyle=line, linewidth=1.8)
        at = [gpu.low.saved_us(weight_bytes, window_us) for window_us in windows_us]
        axes.plot(windows_us, at, color=colour, linestyle="none", marker=marker)
        axes.plot([], [], color=colour, linestyle=line, marker=marker, linewidth=1.8, label=gpu.name)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xlim(0, longest_us)
    axes.set_xlabel("the collective waits, us")
    axes.set_ylabel("us saved a window")
    axes.set_title(
        f"predicted saving before {weight_bytes / MIB:g} MiB of weights (thick: cautious, thin: hopeful)", loc="left"
    )
    axes.grid(color="0.92")
    axes.legend(loc="upper left", frameon=False)
    save(figure, path)
