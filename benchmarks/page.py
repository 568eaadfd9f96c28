"""Writes benchmarks/README.md, and the pictures, from the JSON files of one run on one machine."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dsv41_l2pf.predict import GPUS, MIB, WINDOWS_US, predictions

from . import plots, predict
from .common import RESULTS, ROOT, number, verdict

PAGE = ROOT / "benchmarks" / "README.md"
BENCHMARKS = ("gap", "decode", "transformers", "dispatch", "counters", "multi_gpu")
_PREDICTED_BYTES = 16 * MIB

_INTRODUCTION = """\
# Benchmarks

`make bench` builds the library and the rivals' kernels with the `python3` on PATH, runs all benchmarks on its GPU and
writes this page. `tools/bench.sh NAME...` runs some of them, `tools/bench.sh --quick NAME...` only shows whether they
run, and each is a command with `--help`: `python3 -m benchmarks.gap --help`. `make multi-gpu` does so for several GPUs
of one host; its page lies beside its results.

Rules that hold for every number here:

- Results are compared bit for bit with those of `off` before anything is timed.
- Ratios are taken round by round from arms that run in turns in one process, in alternating order; a number is a
  median, a range is its quartiles. Numbers of different runs are not compared.
- `null` is `off` captured and timed a second time. The null spread is how far its quartiles are from 1: what chance
  does.
- Steps are CUDA graphs. A collective is a kernel that waits for the time given, by the GPU's clock; those of `multi_gpu`
  are real.
"""

_ARMS = """\
## Arms

| arm | what it is |
| --- | --- |
| off, null | the same step without us, twice |
| seed | 8 CTAs x 64 threads, bulk hints of 16 KiB, a segment a CTA, side stream joined at the next collective; 6 MiB |
| bulk_4k | 16 x 128, bulk hints of 4 KiB with evict_last, side stream joined at the end of the step; 20 MiB |
| paced_load | 16 x 256, loads with 128 KiB in flight, low-priority side stream joined at the next collective; 12 MiB |
| ours_auto | calibration and an automatic budget |
| ours_tuned | a graph after `prefetcher.tune`; windows that it switched off are empty nodes |
| ours_recaptured | captured again after `prefetcher.tune`: windows that are off have no node |
| ideal | off, less what the GEMMs gain when their weights were read right before instead of other bytes |
| hot | (`gap`) one weight all the time instead of many |
| empty | our graph with every window switched off |

The rivals are our own code of the geometry that others published: seed is the adapter this project began from, bulk_4k
a fork of vLLM, paced_load a C++ engine for GB10. Each also runs with 32 MiB (paced_load with 512 KiB in flight), and
the better of the two counts.
"""


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    names = list(columns)
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def goal_rows(goals: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    rows = []
    for goal in goals:
        sign = "<=" if goal["at_most"] else ">="
        rows.append([goal["text"], f"{sign} {goal['target']:g}", number(goal["measured"]), verdict(dict(goal))])
    return rows


def _pivot(content: Mapping[str, Any], key: str, form: str) -> str:
    """One line a case, one column an arm."""
    rows = [row for row in content["rows"] if row.get(key) is not None and not row["arm"].startswith("sweep")]
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    found = {(row["case"], row["arm"]): row[key] for row in rows}
    cases = list(dict.fromkeys(row["case"] for row in rows))
    lines = [[case, *(number(found.get((case, arm)), form) for arm in arms)] for case in cases]
    return table(["case", *arms], lines)


def _sweeps(content: Mapping[str, Any]) -> str:
    rows = [row for row in content["rows"] if row["arm"] in ("sweep", "sweep_auto")]
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        fixed = [row for row in rows if row["case"] == case and row["arm"] == "sweep"]
        best = min(fixed, key=lambda row: row["ratio_to_off"])
        auto = next(row for row in rows if row["case"] == case and row["arm"] == "sweep_auto")
        found = (number(best["ratio_to_off"], ".4f"), number(auto["ratio_to_off"], ".4f"))
        lines.append([case, f"{best['budget_mib']:g}", *found])
    return table(["case", "best fixed budget, MiB", "its ratio", "auto's ratio"], lines) if lines else ""


def _gap(content: Mapping[str, Any]) -> str:
    probes = [row for row in content["rows"] if "share" not in row]
    lines = [
        [row["case"], row["arm"], f"{number(row['value'], '.2f')} {row['unit']}", number(row["ratio_to_off"])]
        for row in probes
    ]
    parts = ["Share of the gap closed, of the larger of `hot` and `ideal`:", _pivot(content, "share", ".2f")]
    parts += ["The same of the two gaps apart, `hot` (one weight repeated) and `ideal` (the weight read right before):"]
    parts += [_pivot(content, "share_of_hot", ".2f"), _pivot(content, "share_of_ideal", ".2f")]
    if lines:
        columns = ["case", "arm", "value", "ratio to off"]
        parts += ["Fill rate, and the collective's own latency:", table(columns, lines)]
    return "\n\n".join(parts)


def _steps(content: Mapping[str, Any]) -> str:
    parts = ["Step time of off:", _pivot(content, "ratio_to_off", ".4f")]
    swept = _sweeps(content)
    if swept:
        parts += ["Fixed budgets from 1 to 40 MiB against `auto`, in one graph:", swept]
    return "\n\n".join(parts)


def _several_gpus(content: Mapping[str, Any]) -> str:
    collectives = [row for row in content["rows"] if row["unit"] != "us"]
    steps = [row for row in content["rows"] if row["unit"] == "us"]
    parts = [content.get("warning", ""), "Step time of off, by the slowest rank of every round:"]
    parts.append(_pivot({"rows": steps}, "ratio_to_off", ".4f"))
    parts += ["The same in us:", _pivot({"rows": steps}, "value", ".1f")]
    if collectives:
        parts.append("A collective with nothing beside it but prefetches, us:")
        parts.append(_pivot({"rows": collectives}, "value", ".2f"))
    lines = [
        [case, f"`{kernel}`", str(num_edges)]
        for case, kernels in content["frontier"].items()
        for kernel, num_edges in kernels.items()
    ]
    if lines:
        parts += ["The kernels that prefetch nodes hang on, by a launch-order edge each:"]
        parts.append(table(["case", "kernel", "edges"], lines))
    return "\n\n".join(part for part in parts if part)


def _counters(content: Mapping[str, Any]) -> str:
    lines = [
        [
            row["case"],
            row["arm"],
            number(row["dram_read_mb"], ".2f"),
            number(row["l2_read_hit_percent"], ".1f"),
            number(row["value"], ".2f"),
            number(row["share"], ".2f"),
        ]
        for row in content["rows"]
    ]
    columns = ["case", "arm", "MB read from DRAM", "reads that hit L2, %", "us", "share of the gap closed"]
    text = "The GEMM alone, after the prefetch ran alone to its end, counted by ncu with clocks and caches left alone:"
    return "\n\n".join([text, table(columns, lines)])


def _costs(content: Mapping[str, Any]) -> str:
    return "\n\n".join(["Host time in us, a call or a window:", _pivot(content, "value", ".2f")])


_SECTIONS = {
    "gap": ("How much of a GEMM's cold-to-hot gap a prefetch closes", _gap),
    "decode": ("Decode steps of one rank", _steps),
    "transformers": ("Real transformers models through `attach` alone", _steps),
    "dispatch": ("What the operators cost the host", _costs),
    "counters": ("What a GEMM reads from DRAM, by hardware counters", _counters),
    "multi_gpu": ("Several GPUs of one host, with real collectives", _several_gpus),
}


def section(content: Mapping[str, Any], picture: str) -> str:
    """One benchmark of the page. picture: the path of its PNG, as the page links it; empty when it has none."""
    title, body = _SECTIONS[content["benchmark"]]
    parts = [
        f"## {content['benchmark']}: {title}",
        f"{content['gpu']}, driver {content['driver']}, torch {content['torch']}, commit {content['commit']}, "
        f"null spread {number(content['null_spread'], '.4f')}",
        f"    {content['command']}",
        f"![{content['benchmark']}]({picture})" if picture else "",
        body(content),
    ]
    if content["goals"]:
        parts += ["Goals:", table(["goal", "target", "measured", "result"], goal_rows(content["goals"]))]
    if content["skipped"]:
        parts.append("Not measured, the deadline came first: " + ", ".join(content["skipped"]) + ".")
    parts += [f"Failed: {case}: {error}" for case, error in content["failed"].items()]
    return "\n\n".join(part for part in parts if part)


def summary(contents: Iterable[Mapping[str, Any]]) -> str:
    """How many goals are met, and each one that is not."""
    goals = [(content["benchmark"], goal) for content in contents for goal in content["goals"]]
    missed = [(benchmark, goal) for benchmark, goal in goals if not goal["met"]]
    lines = [f"## Goals\n\n{len(goals) - len(missed)} of {len(goals)} goals are met."]
    if missed:
        rows = [[benchmark, *row] for benchmark, goal in missed for row in goal_rows([goal])]
        lines += ["These are not:", table(["benchmark", "goal", "target", "measured", "result"], rows)]
    return "\n\n".join(lines)


def paper_model(contents: Mapping[str, Mapping[str, Any]]) -> str:
    """The prediction for GPUs that were not at hand, after its check against `gap`."""
    by_window = [predictions(_PREDICTED_BYTES, window_us) for window_us in WINDOWS_US]
    lines = [
        [gpu.name, *("{:.1f} .. {:.1f}".format(*found[gpu.name]) for found in by_window), gpu.basis] for gpu in GPUS
    ]
    parts = [
        "## Other GPUs, on paper",
        "A window saves what was prefetched times (1 / cold rate - 1 / hot rate), and is charged 0.1 us for its node; "
        "prefetched is the least of the weights, the usable L2 and fill rate x window. See `dsv41_l2pf/predict.py`.",
        f"Us saved by one window before {_PREDICTED_BYTES // MIB} MiB of weights, from public rates, low .. high:",
        table(["GPU", *(f"{window_us:g} us" for window_us in WINDOWS_US), "from"], lines),
    ]
    if "gap" in contents:
        rows = predict.checked(contents["gap"])
        columns = ("predicted_us", "ours_us", "ideal_us", "of_predicted")
        checks = [[row["case"], *(number(row[column], ".2f") for column in columns)] for row in rows]
        parts += [
            "The same model with the rates that calibration measured, against `gap`: us saved a window. Median of "
            f"measured over predicted: {number(predict.typical_ratio(rows), '.2f')}.",
            table(["case", "predicted", "ours_auto", "ideal", "ours / predicted"], checks),
        ]
    return "\n\n".join(parts)


def render(contents: Mapping[str, Mapping[str, Any]], pictures: str, notes: str = "") -> str:
    """The whole page. contents: by benchmark; pictures: the folder of the PNGs as the page links it.

    notes: what a person found out about the goals that are missed, in Markdown.
    """
    parts = [_INTRODUCTION.rstrip(), summary(contents.values())]
    if notes.strip():
        parts.append(f"## Why, and what was tried\n\n{notes.strip()}")
    parts.append(_ARMS.rstrip())
    drawn = {name: f"{pictures}/{name}.png" for name in plots.DRAWINGS}
    parts += [section(content, drawn.get(name, "")) for name, content in contents.items()]
    if set(contents) != {"multi_gpu"}:
        parts.append(paper_model(contents))
    return "\n\n".join(parts) + "\n"


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """The JSON of every benchmark that `folder` has, by name."""
    paths = {name: folder / f"{name}.json" for name in BENCHMARKS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python3 -m benchmarks.page", description=__doc__)
    arguments.add_argument("--results", type=Path, default=RESULTS, help="folder with the JSON files and notes.md")
    arguments.add_argument("--page", type=Path, default=PAGE, help="the file to write")
    args = arguments.parse_args()
    contents = load(args.results)
    if not contents:
        raise SystemExit(f"benchmarks.page: expected one of {', '.join(BENCHMARKS)}.json in {args.results}, got none")
    for name, content in contents.items():
        plots.draw(args.results / f"{name}.png", content)
    notes = args.results / "notes.md"
    pictures = Path(os.path.relpath(args.results, args.page.parent)).as_posix()
    args.page.write_text(render(contents, pictures, notes.read_text() if notes.is_file() else ""))
    print(f"written: {args.page}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
