#!/usr/bin/env python3
"""Keeps what the long runs found, and makes docs/reliability.md of it.

    records.py add NAME COMMAND FOUND   into tests/records.json: the run of COMMAND here and now found FOUND
    records.py merge FILE               takes over what another machine's tests/records.json has
    records.py page                     writes docs/reliability.md from tests/records.json

Environment: L2PF_RECORDS (another file for `add`), L2PF_COMMIT (what ran, where there is no git).
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests" / "records.json"
PAGE = ROOT / "docs" / "reliability.md"

Records = dict[str, dict[str, str]]  # by the names of RUNS

# name -> what ran, in the order of the page
RUNS = {
    "gpu_ctest": "C++ tests, with a GPU",
    "gpu_pytest": "Python tests, with a GPU",
    "gpu_demo": "the demo, with a GPU",
    "nccl_one_gpu": "two NCCL ranks on one GPU",
    "thread": "C++ tests under ThreadSanitizer",
    "address_undefined": "C++ tests under AddressSanitizer and UBSan",
    "fuzz_plan": "libFuzzer on plans",
    "fuzz_table_image": "libFuzzer on table images",
    "memcheck": "compute-sanitizer memcheck",
    "racecheck": "compute-sanitizer racecheck",
    "initcheck": "compute-sanitizer initcheck",
    "synccheck": "compute-sanitizer synccheck",
    "soak_gpu": "soak: a graph's replays while plans change",
    "soak_cpu": "soak on a CPU, eager",
}

_INTRODUCTION = """\
# What was run to break it

Each line is what a run said of itself: `tools/records.py add` keeps it, called by the run, and `tools/records.py page`
made this page. The sanitizers leave calibration out, and have not seen what was edited in csrc/cuda after their commit.
Where a line names a failed test, its cause was added by hand. The 36 public bug reports, one test each, are in
[scenarios.md](scenarios.md).
"""


def _output_of(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine() -> str:
    gpu = _output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").partition("\n")[0]
    return gpu.replace(", ", ", driver ") or f"{os.cpu_count()} cores, {platform.machine()}"


def add(name: str, command: str, found: str) -> None:
    """Raises SystemExit for a name that the page does not know."""
    if name not in RUNS:
        raise SystemExit(f"records.py: expected one of {', '.join(RUNS)}, got {name}")
    record = {
        "command": command,
        "found": " ".join(found.split()),
        "machine": machine(),
        "commit": os.environ.get("L2PF_COMMIT") or _output_of("git", "rev-parse", "--short", "HEAD") or "unknown",
        "date": datetime.date.today().isoformat(),
    }
    path = Path(os.environ.get("L2PF_RECORDS") or FILE)
    write(path, {**read(path), name: record})


def read(path: Path) -> Records:
    return json.loads(path.read_text()) if path.is_file() else {}


def write(path: Path, records: Records) -> None:
    ordered = {name: records[name] for name in RUNS if name in records}
    path.write_text(json.dumps(ordered, indent=1) + "\n")


def render(records: Records) -> str:
    lines = ["| what | found | command | machine | commit | date |", "| --- | --- | --- | --- | --- | --- |"]
    for name, what in RUNS.items():
        if name in records:
            record = records[name]
            cells = (what, record["found"], f"`{record['command']}`")
            cells += tuple(record[key] for key in ("machine", "commit", "date"))
        else:
            cells = (what, "not run yet", "", "", "", "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return _INTRODUCTION + "\n" + "\n".join(lines) + "\n"


def main(words: list[str]) -> None:
    if len(words) == 4 and words[0] == "add":
        add(*words[1:])
    elif len(words) == 2 and words[0] == "merge":
        write(FILE, {**read(FILE), **read(Path(words[1]))})
    elif words == ["page"]:
        PAGE.write_text(render(read(FILE)))
        print(f"written: {PAGE.relative_to(ROOT)}")
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
