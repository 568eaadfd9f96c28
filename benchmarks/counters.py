"""What a GEMM reads from DRAM and finds in L2, cold, after each form's prefetch, and hot: hardware counters by ncu.

Runs itself under ncu, which replays the whole program as often as its counters need. Clocks and caches are left alone.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import dsv41_l2pf
from dsv41_l2pf.demo.graph_nodes import read_graph

from .common import ROOT, Document, console, environment, finish, introduce, parser, require_cuda, row_table
from .models import MIB

# EVIDENCE 3: tokens, K, N; all FP8.
GEMMS = ((16, 7168, 2112), (16, 1536, 6144), (16, 7168, 4096))
COLD, HOT = "cold", "hot"
# Name in the JSON -> ncu's name, and what one of its units is worth.
COUNTERS = {
    "dram_read_mb": ("dram__bytes_read.sum", 1e-6),
    "l2_read_hit_percent": ("lts__t_sector_op_read_hit_rate.pct", 1.0),
    "duration_us": ("gpu__time_duration.sum", 1e-3),
}
_RANGE = "measured"
_CACHE_STATE = (
    "before each GEMM 256 MiB are written, then the prefetch runs alone to its end; hot runs the GEMM twice first"
)


def arms_of(forms: Iterable[str]) -> list[str]:
    return [COLD, *(f"ours_{form}" for form in forms), HOT]


def case_of(gemm: tuple[int, int, int]) -> str:
    m, k, n = gemm
    return f"fp8 {k}x{n} M{m}"


class OneGemm:
    """A prefetcher that has learned the one weight of a GEMM, behind one all-reduce."""

    def __init__(self, m: int, k: int, n: int) -> None:
        self.num_tokens = m
        self.x = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
        self.weight = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn)
        self.one = torch.ones((), device="cuda")
        self.data = torch.ones(1024, device="cuda")
        self.prefetcher = dsv41_l2pf.Prefetcher(dsv41_l2pf.Config())
        for _ in range(2):
            self.step("")

    def gemm(self) -> torch.Tensor:
        return torch._scaled_mm(
            self.x, self.weight.t(), scale_a=self.one, scale_b=self.one, out_dtype=torch.bfloat16
        )

    def num_kernels(self) -> int:
        """How many kernels the GEMM is: where it is split, another one adds the parts."""
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            self.gemm()
        return len(read_graph(graph).kernels(""))

    def step(self, name: str) -> None:
        """The prefetch alone, then the GEMM alone, in an NVTX range when it has a `name`."""
        with self.prefetcher.forward(self.num_tokens):
            with self.prefetcher.collective(self.data, "all_reduce"):
                pass
            torch.cuda.synchronize()
            torch.ops.dsv41.record_weight([self.weight])
            if name:
                torch.cuda.nvtx.range_push(_RANGE)
            self.gemm()
            torch.cuda.synchronize()
            if name:
                torch.cuda.nvtx.range_pop()


def run_arms(plan_path: Path) -> None:
    """What runs under ncu. Writes the arms, in the order of their ranges, to `plan_path`."""
    flushed = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    gemms = [OneGemm(*gemm) for gemm in GEMMS]
    (device,) = [entry for entry in dsv41_l2pf.status()["devices"] if entry["device"].startswith("cuda")]
    arms = arms_of(device["forms"])
    num_kernels = [one.num_kernels() for one in gemms]
    plan = {"arms": arms, "num_kernels": num_kernels, "calibration": asdict(dsv41_l2pf.calibrate())}
    plan_path.write_text(json.dumps(plan))
    for one in gemms:
        for arm in arms:
            form = arm.removeprefix("ours_")
            budget = {"budget_bytes": 0} if arm in (COLD, HOT) else {"budget_bytes": one.weight.nbytes, "form": form}
            one.prefetcher.set_window(0, num_tokens=one.num_tokens, **budget)
            flushed.fill_(1)
            torch.cuda.synchronize()
            for _ in range(2 if arm == HOT else 0):
                one.gemm()
            one.step(arm)


def records_of(ncu_csv: str) -> Iterator[dict[str, float]]:
    """The counters of each profiled kernel, in order, from `ncu --csv --page raw --print-units base`."""
    lines = ncu_csv.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise ValueError(f"ncu: expected a table of counters, got {ncu_csv[-400:].strip() or 'nothing'}")
    # The line below the names holds the units.
    reader = csv.DictReader(io.StringIO("\n".join([lines[begin], *lines[begin + 2 :]])))
    for record in reader:
        yield {
            name: float(record[metric].replace(",", "")) * worth for name, (metric, worth) in COUNTERS.items()
        }


def rows_of(arms: list[str], num_kernels: list[int], records: list[dict[str, float]]) -> list[dict[str, Any]]:
    """A row for each GEMM and arm. num_kernels: of each GEMM; bytes and times add up, hits are the first kernel's."""
    num_expected = len(arms) * sum(num_kernels)
    if len(records) != num_expected:
        raise ValueError(f"ncu: expected {num_expected} kernels for {len(arms)} arms, got {len(records)}")
    rows = []
    left = iter(records)
    for gemm, num, arm in ((gemm, num, arm) for gemm, num in zip(GEMMS, num_kernels) for arm in arms):
        kernels = [next(left) for _ in range(num)]
        counted = {name: sum(kernel[name] for kernel in kernels) for name in COUNTERS}
        counted["l2_read_hit_percent"] = kernels[0]["l2_read_hit_percent"]
        rows.append({"case": case_of(gemm), "arm": arm, "weight_mb": gemm[1] * gemm[2] / 1e6, **counted})
    for row in rows:
        cold_us, hot_us = (
            next(r["duration_us"] for r in rows if r["case"] == row["case"] and r["arm"] == arm) for arm in (COLD, HOT)
        )
        row |= {"value": row["duration_us"], "unit": "us", "ratio_to_off": row["duration_us"] / cold_us}
        row["share"] = (cold_us - row["duration_us"]) / (cold_us - hot_us)
    return rows


def profile(ncu: str, plan_path: Path) -> str:
    """The output of ncu over `run_arms`. Raises SystemExit with ncu's own words when it fails."""
    metrics = ",".join(metric for metric, _ in COUNTERS.values())
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--metrics", metrics]
    command += ["--replay-mode", "application", "--cache-control", "none", "--clock-control", "none"]
    command += ["--nvtx", "--nvtx-include", f"{_RANGE}/"]
    command += [sys.executable, "-m", "benchmarks.counters", "--run-arms", str(plan_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"counters: ncu failed ({found.returncode}): {(found.stdout + found.stderr)[-2000:]}")
    return found.stdout


def main() -> int:
    found = parser("counters", __doc__.splitlines()[0])
    found.add_argument("--run-arms", type=Path, help=argparse.SUPPRESS)
    args = found.parse_args()
    require_cuda()
    if args.run_arms:
        run_arms(args.run_arms)
        return 0
    ncu = shutil.which("ncu")
    if ncu is None:
        raise SystemExit("counters: expected ncu (Nsight Compute) on PATH, found none")
    document = Document("counters", environment(args.commit))
    introduce("counters", document.record, _CACHE_STATE)
    with tempfile.TemporaryDirectory() as folder, document.case("counters"):
        plan_path = Path(folder) / "plan.json"
        output = profile(ncu, plan_path)
        plan: Mapping[str, Any] = json.loads(plan_path.read_text())
        document.extra["calibration"] = plan["calibration"]
        document.rows += rows_of(plan["arms"], plan["num_kernels"], list(records_of(output)))
        shown = {"case": "", "arm": "", "dram_read_mb": ".2f", "l2_read_hit_percent": ".1f", "duration_us": ".2f"}
        console.print(row_table("one GEMM by its counters", document.rows, shown | {"share": ".2f"}))
    args.no_plot = True
    return finish(document, args)


if __name__ == "__main__":
    raise SystemExit(main())
