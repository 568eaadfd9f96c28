"""What every benchmark shares: its arguments, the record of its environment, goals, tables and the JSON."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "h200"
WIDTH = 150

console = Console(width=WIDTH, highlight=False)


@dataclass(frozen=True)
class Goal:
    """What issue 4 asks for. measured, target: numbers of one unit; at_most: which side of the target is good.

    slack: how far past the target still counts, where the goal allows the null spread.
    """

    text: str
    measured: float
    target: float
    at_most: bool = True
    slack: float = 0.0

    @property
    def missed_by(self) -> float:
        """How far past the target, 0 when met; not a number when there is no measurement."""
        excess = self.measured - self.target if self.at_most else self.target - self.measured
        return excess if math.isnan(excess) else max(0.0, excess - self.slack)

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "missed_by": self.missed_by, "met": self.missed_by == 0}


def goal_table(title: str, goals: Iterable[dict[str, Any]]) -> Table:
    """goals: as `Goal.record` gives them."""
    table = Table(title=title)
    table.add_column("goal", overflow="fold")
    for column in ("target", "measured"):
        table.add_column(column, justify="right")
    table.add_column("result")
    for goal in goals:
        sign = "<=" if goal["at_most"] else ">="
        result = "met" if goal["met"] else f"missed by {goal['missed_by']:.3f}"
        table.add_row(goal["text"], f"{sign} {goal['target']:.3f}", f"{goal['measured']:.3f}", result)
    return table


def row_table(title: str, rows: Iterable[dict[str, Any]], columns: dict[str, str]) -> Table:
    """columns: key of the row -> how the value is formatted, as in `format`; a missing value stays blank."""
    table = Table(title=title)
    for key in columns:
        table.add_column(key.replace("_", " "), justify="left" if columns[key] == "" else "right", overflow="fold")
    for row in rows:
        values = ((row.get(key), form) for key, form in columns.items())
        table.add_row(*("" if value is None else format(value, form) for value, form in values))
    return table


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Arguments that every benchmark takes."""
    found = argparse.ArgumentParser(prog=f"python3 -m benchmarks.{name}", description=description)
    found.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON and the PNG")
    found.add_argument("--commit", default="", help="what the JSON says was measured, where there is no git")
    return found


def require_cuda() -> None:
    """Exits unless this process can run the GPU benchmarks."""
    import dsv41_l2pf

    if not torch.cuda.is_available():
        raise SystemExit(f"benchmarks: expected a GPU, torch {torch.__version__} finds none")
    if not dsv41_l2pf.status()["cuda_built"]:
        raise SystemExit("benchmarks: libdsv41_l2pf.so was built without CUDA: run `make bench-build`")


def _output_of(*command: str) -> str:
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()


def _commit() -> str:
    commit = _output_of("git", "rev-parse", "HEAD")
    return commit + ("+changes" if commit and _output_of("git", "status", "--porcelain", "-uno") else "")


def environment(commit: str = "") -> dict[str, str]:
    """gpu, driver, torch, commit and command of this run; commit: as the caller knows it, else git's."""
    on_gpu = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if on_gpu else "none",
        "driver": _output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]
        if on_gpu
        else "none",
        "torch": torch.__version__,
        "commit": commit or _commit() or "unknown",
        "command": shlex.join(["python3", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
    }


def introduce(benchmark: str, record: dict[str, str], cache_state: str) -> None:
    """Prints what is about to be measured, on what, and against what."""
    console.print(f"{benchmark} on {record['gpu']}, driver {record['driver']}, torch {record['torch']}")
    console.print(f"commit {record['commit']}: {record['command']}")
    console.print(f"cache state and baseline: {cache_state}")


@dataclass
class Document:
    """The JSON of one benchmark. extra: more keys, beside the agreed ones."""

    benchmark: str
    record: dict[str, str]
    null_spread: float
    rows: list[dict[str, Any]]
    goals: list[Goal]
    extra: dict[str, Any]

    def write(self, folder: Path) -> Path:
        """Writes <benchmark>.json to `folder` and returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.benchmark}.json"
        content = {
            "benchmark": self.benchmark,
            **self.record,
            "null_spread": self.null_spread,
            "rows": self.rows,
            "goals": [goal.record() for goal in self.goals],
            **self.extra,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")
        return path


def finish(document: Document, folder: Path) -> Path:
    """Prints the goals and writes the JSON; returns its path."""
    records = [goal.record() for goal in document.goals]
    console.print(goal_table(f"{document.benchmark}: the goals of issue 4", records))
    path = document.write(folder)
    console.print(f"written: {path}")
    return path


def geometric_mean(values: Iterable[float]) -> float:
    """Not a number when there is none, 0 when one is not positive: such a mean has no honest value."""
    listed = list(values)
    if not listed:
        return math.nan
    if min(listed) <= 0:
        return 0.0
    return math.exp(sum(map(math.log, listed)) / len(listed))
