"""Fill curve: how fast each form brings bytes into L2, by the number of CTAs."""

from __future__ import annotations

from pathlib import Path

from ..calibration import Calibration
from .style import COLOURS, LINES, MARKERS, new_figure, save


def draw_fill(path: Path, calibration: Calibration) -> None:
    """Draws `calibration.fill_gbps`, the rate of a plain DRAM read, and the form and CTAs that were chosen."""
    figure, axes = new_figure(8, 4.8)
    chosen = (calibration.form, calibration.num_ctas)
    for (form, rates), colour, line, marker in zip(calibration.fill_gbps.items(), COLOURS, LINES, MARKERS):
        points = sorted((int(num_ctas), gbps) for num_ctas, gbps in rates.items())
        num_ctas, gbps = zip(*points)
        axes.plot(num_ctas, gbps, color=colour, linestyle=line, marker=marker, linewidth=1.8, label=form)
    axes.plot(chosen[1], calibration.chosen_fill_gbps, "o", markersize=15, fillstyle="none", color="black",
              label=f"chosen: {chosen[0]}, {chosen[1]} CTAs")  # fmt: skip
    dram_gbps = calibration.dram_read_gbps
    axes.axhline(dram_gbps, color="0.4", linewidth=1)
    axes.annotate(f"plain DRAM read, {dram_gbps:.0f} GB/s", (1, dram_gbps), xycoords=("axes fraction", "data"),
                  xytext=(0, 4), textcoords="offset points", ha="right", color="0.3", fontsize=9)  # fmt: skip
    ticks = sorted({int(num_ctas) for rates in calibration.fill_gbps.values() for num_ctas in rates})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, ticks)
    axes.minorticks_off()
    highest = max(dram_gbps, *(gbps for rates in calibration.fill_gbps.values() for gbps in rates.values()))
    axes.set_ylim(0, 1.12 * highest)
    axes.set_xlabel("CTAs that prefetch")
    axes.set_ylabel("GB/s into L2")
    axes.set_title(f"{calibration.gpu}: how fast each form fills L2", loc="left")
    axes.grid(axis="y", color="0.92")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    save(figure, path)
