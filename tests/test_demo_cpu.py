"""`python -m dsv41_l2pf demo` where there is no GPU: the main job on real input."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsv41_l2pf.demo.arms import Arm, interleave, spread

ROOT = Path(__file__).resolve().parent.parent


def run_demo(folder: Path, **environment: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120", **environment}
    command = [sys.executable, "-m", "dsv41_l2pf", "demo"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280)


def test_demo(tmp_path):
    result = run_demo(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    row = dict(re.findall(r"^│ (\S.*?) +│ +(\S.*?) │$", result.stdout, re.MULTILINE))
    # Four layers: two row-parallel linears each, and the all-gather of the logits, which no weight follows.
    assert row["collectives"] == "9"
    assert row["windows planned"] == "8"
    assert row["windows launched in the last step"] == "8 on rank 0, 8 on rank 1"
    assert row["tokens equal with and without"] == "24 of 24"
    assert row["logits with and without"] == "bit-identical"
    assert row["result"] == "passed"
    # (3 x 2816 x 1024 a layer, 3 x 1024 x 1024 for three attentions, lm_head 4096 x 1024) x 2 bytes / 2 ranks
    assert float(row["planned MiB"]) == pytest.approx((4 * 3 * 2816 + 3 * 3 * 1024 + 4096) * 1024 / 2**20, abs=0.05)
    assert len([name for name in row if name.startswith("step ms, ")]) == 4
    assert (tmp_path / "dsv41_l2pf_demo.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_demo_fails_when_nothing_is_prefetched(tmp_path):
    result = run_demo(tmp_path, DSV41_L2_PREFETCH="0")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "off: DSV41_L2_PREFETCH=0" in result.stdout, result.stdout + result.stderr


def test_arms_run_in_turns_and_report_block_medians():
    order = []
    arms = [Arm(name, lambda name=name: order.append(name)) for name in ("off", "on")]
    medians = interleave(arms, lambda: [1.0, 9.0, 2.0 if order[-1] == "off" else 4.0], 4, lambda: None)
    assert order == ["off", "on", "on", "off", "off", "on", "on", "off"]
    assert medians == {"off": [2.0] * 4, "on": [4.0] * 4}


def test_spread_is_median_and_quartiles():
    assert str(spread([1.0, 2.0, 3.0, 4.0, 5.0])) == "3.00 (2.00 .. 4.00)"
