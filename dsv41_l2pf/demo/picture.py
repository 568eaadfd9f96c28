"""The demo's picture: what is prefetched behind each collective, and what a step costs each way."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first: there is no screen)

from ..config import MIB  # noqa: E402

_HATCHES = {"all_reduce": "", "all_gather": "//", "reduce_scatter": "\\\\", "all_to_all": "xx", "broadcast": ".."}


def draw(path: Path, title: str, windows: list[dict], arms: dict[str, list[float]], unit: str = "ms") -> None:
    """Writes a PNG that reads in grey.

    windows: as in `status`, at least one. arms: block medians of the step time in `unit`, by name, the baseline first.
    """
    figure, (plan, steps) = plt.subplots(1, 2, figsize=(12, 4.5), constrained_layout=True)
    figure.suptitle(title)
    _draw_plan(plan, windows)
    _draw_steps(steps, arms, unit)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_plan(axes: plt.Axes, windows: list[dict]) -> None:
    for kind in dict.fromkeys(window["kind"] for window in windows):
        mine = [window for window in windows if window["kind"] == kind]
        index = [window["collective_index"] for window in mine]
        axes.bar(index, [w["window_bytes"] / MIB for w in mine], color="white", edgecolor="black", linewidth=0.8)
        budget = [min(w["window_bytes"], w["budget_bytes"]) / MIB for w in mine]
        axes.bar(index, budget, color="0.6", edgecolor="black", hatch=_HATCHES[kind], label=f"prefetched behind {kind}")
    axes.set_title("weights read after each collective (white: past the budget)")
    axes.set_xlabel("collective of the forward")
    axes.set_ylabel("MiB")
    axes.set_ylim(0, 1.25 * max(window["window_bytes"] for window in windows) / MIB)
    axes.legend(loc="upper right")


def _draw_steps(axes: plt.Axes, arms: dict[str, list[float]], unit: str) -> None:
    names, block_medians = list(arms), list(arms.values())
    look = {"orientation": "horizontal", "patch_artist": True, "whis": (0, 100), "widths": 0.5}
    boxes = axes.boxplot(block_medians, tick_labels=names, **look)
    for box in boxes["boxes"]:
        box.set_facecolor("0.85")
    for line in boxes["medians"]:
        line.set_color("black")
        line.set_linewidth(2)
    axes.invert_yaxis()
    axes.set_xlabel(f"step time, {unit} (box: quartiles of block medians, whiskers: all)")
    axes.set_title("one decode step, arms measured in turns")
    axes.grid(axis="x", color="0.9")
