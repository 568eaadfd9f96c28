"""The pictures, drawn from the content of a benchmark's JSON. They read in grey, by hatch and marker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen first: there is no screen)

Content = Mapping[str, Any]

# arm -> marker, fill
_DOTS = {
    "null": ("|", "black"),
    "empty": ("_", "black"),
    "seed": ("v", "white"),
    "bulk_4k": ("^", "white"),
    "paced_load": ("s", "white"),
    "ours_auto": ("o", "0.6"),
    "ours_tuned": ("o", "black"),
    "ours_recaptured": ("D", "black"),
    "ideal": ("*", "white"),
}
# arm -> grey, hatch
_BARS = {"null": ("1.0", ".."), "seed": ("0.85", "//"), "ours_auto": ("0.4", "")}
_MARKERS = {
    "seed": ("v", ":"),
    "bulk_4k": ("^", ":"),
    "paced_load": ("s", ":"),
    "ours_bulk": ("+", "--"),
    "ours_lines": ("x", "--"),
    "ours_load": ("D", "--"),
    "ours_load_both": ("*", "--"),
    "ours_load_keep": ("p", "--"),
    "ours_auto": ("o", "-"),
    "ideal": ("None", "-."),
}


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)


def steps(path: Path, content: Content) -> None:
    """A line a case, a marker an arm: ratio_to_off with quartiles; used by `decode`, `transformers`, `multi_gpu`."""
    rows = [row for row in content["rows"] if row["arm"] in _DOTS]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    arms = [arm for arm in _DOTS if any(row["arm"] == arm for row in rows)]
    figure, axes = plt.subplots(figsize=(11, 1.5 + 0.5 * len(cases)), constrained_layout=True)
    for position, arm in enumerate(arms):
        mine = [row for row in rows if row["arm"] == arm]
        # Inside a case's line the arms lie under one another, so that whiskers can be told apart.
        at = [cases.index(row["case"]) + 0.8 * (position / max(1, len(arms) - 1) - 0.5) for row in mine]
        change = [100 * (row["ratio_to_off"] - 1) for row in mine]
        low = [100 * max(0.0, row["ratio_to_off"] - row["ratio_low"]) for row in mine]
        high = [100 * max(0.0, row["ratio_high"] - row["ratio_to_off"]) for row in mine]
        marker, fill = _DOTS[arm]
        look = {"markerfacecolor": fill, "markeredgecolor": "black", "ecolor": "0.5", "markersize": 6, "elinewidth": 1}
        axes.errorbar(change, at, xerr=[low, high], fmt=marker, label=arm, **look)
    for between in range(1, len(cases)):
        axes.axhline(between - 0.5, color="0.85", linewidth=0.8)
    axes.set_yticks(range(len(cases)), cases, fontsize=8)
    axes.set_ylim(len(cases) - 0.5, -0.5)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("step time against off, % (left is faster; whiskers are quartiles)")
    axes.set_title(f"{content['benchmark']} on {content['gpu']}")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    _save(figure, path)


def shares(path: Path, content: Content) -> None:
    """The share of the cold-to-hot gap closed, by window length; one panel a GEMM."""
    rows = [row for row in content["rows"] if row.get("share") is not None and row["arm"] in _MARKERS]
    rows.sort(key=lambda row: row["delay_us"])
    gemms = list(dict.fromkeys(row["gemm"] for row in rows))
    size = {"figsize": (3.4 * len(gemms), 4), "constrained_layout": True}
    figure, panels = plt.subplots(1, len(gemms), sharey=True, squeeze=False, **size)
    for axes, gemm in zip(panels[0], gemms):
        for arm, (marker, line) in _MARKERS.items():
            mine = [row for row in rows if row["gemm"] == gemm and row["arm"] == arm]
            where = [row["delay_us"] for row in mine]
            grey = "0.0" if arm == "ours_auto" else "0.45"
            axes.plot(where, [row["share"] for row in mine], marker=marker, linestyle=line, color=grey, label=arm)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
        axes.set_title(gemm, fontsize=9)
        axes.set_xlabel("peers answer after, us")
        axes.set_ylim(-1, 1.3)
    panels[0][0].set_ylabel("share of the cold-to-hot gap closed")
    panels[0][-1].legend(loc="lower right", fontsize=7)
    figure.suptitle(f"{content['benchmark']} on {content['gpu']}")
    _save(figure, path)


def costs(path: Path, content: Content) -> None:
    """Bars of host time in us, one group a case; used by `dispatch`."""
    rows = content["rows"]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.3 * len(cases) * len(arms)), constrained_layout=True)
    height = 1 / (len(arms) + 1)
    for position, arm in enumerate(arms):
        mine = {row["case"]: row["value"] for row in rows if row["arm"] == arm}
        at = [index + position * height for index, case in enumerate(cases) if case in mine]
        grey, hatch = _BARS.get(arm, ("1.0", ""))
        values = [mine[case] for case in cases if case in mine]
        axes.barh(at, values, height, color=grey, hatch=hatch, edgecolor="black", label=arm, linewidth=0.6)
    axes.set_yticks([index + height * (len(arms) - 1) / 2 for index in range(len(cases))], cases, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("host time, us")
    axes.set_title(f"{content['benchmark']} on {content['gpu']}, torch {content['torch']}")
    axes.legend(fontsize=8)
    _save(figure, path)


DRAWINGS = {"gap": shares, "decode": steps, "transformers": steps, "dispatch": costs, "multi_gpu": steps}


def draw(path: Path, content: Content) -> None:
    """Draws the picture of one benchmark to `path`. Does nothing when nothing was measured that it shows."""
    is_shown = any(row.get("share") is not None or content["benchmark"] != "gap" for row in content["rows"])
    if is_shown and content["benchmark"] in DRAWINGS:
        DRAWINGS[content["benchmark"]](path, content)
