"""Runs a command in this process, and what the CLI tests share."""

import gc
import json

from typer.testing import CliRunner

from dsv41_l2pf.cli import app

# A calibration as the cache keeps it.
CALIBRATION = {
    "gpu": "Fake GPU", "driver": 13000, "library": "0.1.0", "l2_bytes": 1 << 25, "window_bytes": 1 << 22,
    "hot_knee_bytes": 1 << 23, "dram_read_gbps": 900.0, "cold_us": 5.0, "hot_us": 2.0,
    "after_us": {"load": 2.5, "lines": 4.5}, "fill_gbps": {"load": {"24": 700.0, "48": 650.0}, "lines": {"24": 300.0}},
    "collective_slowdown": {"load": 1.25, "lines": 1.0}, "form": "load", "num_ctas": 24, "piece_bytes": 16384,
    "start_delay_ns": 800, "chosen_fill_gbps": 700.0, "partition_of_sm": [],
}  # fmt: skip


def run(*arguments: str):
    """The finished command: `exit_code`, `stdout`, `stderr`."""
    gc.collect()  # a prefetcher of an earlier test that only a cycle holds would still be in the status
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})


def run_json(*arguments: str, exit_code: int = 0) -> dict:
    """What a command prints with --json, which is one line."""
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, (result.stdout, result.stderr, result.exception)
    (line,) = result.stdout.splitlines()
    return json.loads(line)
