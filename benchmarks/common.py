"""What every benchmark shares: its arguments, the record of its environment, goals, tables and the JSON."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
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
    """What is asked for. measured, target: numbers of one unit; at_most: which side of the target is good.

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
        table.add_row(goal["text"], f"{sign} {goal['target']:.3f}", number(goal["measured"]), verdict(goal))
    return table


def number(value: float | None, form: str = ".3f") -> str:
    """A float as text; a dash for None and for what is not a number."""
    return "-" if value is None or math.isnan(value) else format(value, form)


def verdict(goal: dict[str, Any]) -> str:
    """goal: as `Goal.record` gives it, or as it comes back from the JSON."""
    if goal["met"]:
        return "met"
    missed_by = number(goal["missed_by"], ".3g")
    return "not measured" if missed_by == "-" else f"missed by {missed_by}"


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
    found.add_argument("--no-plot", action="store_true", help="leave the PNG to `python3 -m benchmarks.page`")
    found.add_argument("--quick", action="store_true", help="a few cases and rounds: does it run, not how fast")
    found.add_argument("--deadline-s", type=float, default=240, help="start no further case after this long")
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
    """The JSON of one benchmark, which grows case by case. extra: more keys, beside the agreed ones."""

    benchmark: str
    record: dict[str, str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    null_spreads: list[float] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begun_s

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Keeps a case that raises from taking the others along; `failed` and the exit status tell of it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  machine time is dear: the other cases are still worth having
            self.failed[name] = str(error).partition("\n")[0] or type(error).__name__
            console.print_exception(max_frames=8)

    def content(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            **self.record,
            "null_spread": max(self.null_spreads, default=None),
            "rows": self.rows,
            "goals": [goal.record() for goal in self.goals],
            "failed": self.failed,
            "skipped": self.skipped,
            "elapsed_s": self.elapsed_s,
            **self.extra,
        }

    def write(self, folder: Path) -> Path:
        """Writes <benchmark>.json to `folder`, whole or not at all, and returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.benchmark}.json"
        unfinished = path.with_suffix(".json.part")
        unfinished.write_text(json.dumps(finite(self.content()), indent=1, allow_nan=False) + "\n")
        unfinished.replace(path)
        return path


def finite(value: Any) -> Any:
    """`value` with None for every float that JSON has no word for."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def finish(document: Document, args: argparse.Namespace) -> int:
    """Prints the goals, what was left out and what failed, writes JSON and PNG, and returns the exit status."""
    records = [goal.record() for goal in document.goals]
    console.print(goal_table(f"{document.benchmark}: the goals", records))
    if document.skipped:
        console.print("not measured, the deadline came first: " + ", ".join(document.skipped))
    for case, error in document.failed.items():
        console.print(f"FAILED {case}: {error}")
    path = document.write(args.out)
    console.print(f"written after {document.elapsed_s:.0f} s: {path}")
    if not args.no_plot:
        from . import plots

        plots.draw(path.with_suffix(".png"), document.content())
    return 1 if document.failed else 0


def geometric_mean(values: Iterable[float]) -> float:
    """Not a number when there is none, 0 when one is not positive: such a mean has no honest value."""
    listed = list(values)
    if not listed:
        return math.nan
    if min(listed) <= 0:
        return 0.0
    return math.exp(sum(map(math.log, listed)) / len(listed))
