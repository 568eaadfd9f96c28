"""`bench`, `demo` and `status`: exit status and JSON, without a GPU and over a made-up one."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli_runner import run, run_json

import dsv41_l2pf
from dsv41_l2pf.bench import gpu as gpu_bench
from dsv41_l2pf.bench.cpu import SCALE
from dsv41_l2pf.demo import cpu, gpu_model

BENCH = "dsv41_l2pf.cli.bench"


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def gpu(monkeypatch):
    window = {"collective_index": 0, "kind": "all_reduce", "form": "load"}
    window |= {"window_bytes": 2 << 20, "budget_bytes": 1 << 20}
    arms = {name: [100.0 * (1 - 0.01 * i), 200.0 * (1 - 0.01 * i)] for i, name in
            enumerate((gpu_bench.OFF, gpu_bench.AGAIN, gpu_bench.EMPTY, gpu_bench.ON, gpu_bench.TUNED))}  # fmt: skip
    found = gpu_bench.Measured([window], arms, True, "the tuned is faster")
    monkeypatch.setattr(sys.modules[BENCH], "no_gpu_reason", lambda: "")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Fake GPU")
    monkeypatch.setattr(gpu_model, "num_layers_that_fit", lambda: 8)
    monkeypatch.setattr(gpu_bench, "measure", lambda num_layers, stage: (stage("half", 0.5), found)[1])
    return found


def test_on_a_cpu_it_times_the_operators_and_says_that_no_gpu_was_there(no_gpu, tmp_path):
    path = tmp_path / "bench.png"
    found = run_json("bench", "--output", path)
    assert found["device"] == "cpu" and "no GPU" in found["no_gpu"]
    assert SCALE in found["host_us"] and all(0 < cost_us < 1e5 for cost_us in found["host_us"].values())
    assert path.read_bytes().startswith(b"\x89PNG") and found["picture"] == str(path)


def test_on_a_gpu_it_compares_the_arms(gpu, tmp_path):
    found = run_json("bench", "--output", tmp_path / "bench.svg")
    assert found["device"] == "Fake GPU" and found["tokens_equal"] is True
    ratios = {"off": 1, "off, again": 0.99, "windows off": 0.98, "on": 0.97, "tuned": 0.96}
    assert found["ratio_to_off"] == pytest.approx(ratios)
    assert (tmp_path / "bench.svg").read_text().startswith("<?xml")
    text = run("bench", "--output", tmp_path / "bench.png").stdout
    assert "0.9600" in text and "tuned: the tuned is faster" in text


def test_tokens_that_differ_are_a_finding(gpu, tmp_path):
    gpu.tokens_equal = False
    assert run_json("bench", "--output", tmp_path / "bench.png", exit_code=1)["tokens_equal"] is False


def test_too_little_memory_is_a_finding(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_model, "num_layers_that_fit", lambda: 0)
    result = run("bench", "--output", tmp_path / "bench.png")
    assert result.exit_code == 1 and "Fake GPU: expected free memory" in result.stdout


def test_a_picture_of_another_kind_is_wrong_usage(tmp_path):
    assert run("bench", "--output", tmp_path / "bench.gif").exit_code == 2


def test_a_missing_package_is_named(no_gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = run("bench", "--output", tmp_path / "bench.png")
    assert result.exit_code == 2 and "pip install matplotlib" in result.stderr


@pytest.mark.parametrize("exit_code", [0, 1, 2])
def test_the_demo_ends_with_its_own_status_and_prints_its_facts(no_gpu, monkeypatch, tmp_path, exit_code):
    def fake(output, console):
        console.print(f"for people: {output.name}")
        return exit_code, {"device": "cpu"}

    monkeypatch.setattr(cpu, "run", fake)
    assert run_json("demo", "--output", tmp_path / "a.png", exit_code=exit_code) == {"device": "cpu"}
    result = run("demo", "--output", tmp_path / "a.png")
    assert result.stdout == "for people: a.png\n" and result.exit_code == exit_code


def test_status():
    found = run_json("status")
    assert found["version"] == dsv41_l2pf.__version__ and found["forms"] == ["bulk", "lines", "load", "load_keep", "load_both"]
    assert '"forms"' in run("status").stdout


def test_the_command_line_imports_nothing_heavy():
    heavy = ("matplotlib", "transformers", "sglang", "vllm")
    code = f"import dsv41_l2pf.cli, sys; print([name for name in {heavy} if name in sys.modules])"
    root = Path(__file__).resolve().parent.parent
    result = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "[]", result.stderr
