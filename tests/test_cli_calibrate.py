"""`calibrate`: on a machine without a GPU, and over a made-up one."""

import sys

import pytest
import torch
from cli_runner import CALIBRATION, run, run_json

from dsv41_l2pf import calibration
from dsv41_l2pf.calibration import Calibration


@pytest.fixture
def gpu(monkeypatch):
    """A machine with one GPU; returns the calls of `calibrate`."""
    calls = []

    def fake(device, *, force):
        calls.append((device, force))
        return Calibration.from_dict(CALIBRATION)

    # The package holds the command under the name of its module.
    monkeypatch.setattr(sys.modules["dsv41_l2pf.cli.calibrate"], "no_gpu_reason", lambda: "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(calibration, "calibrate", fake)
    return calls


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_without_a_gpu_it_says_so_and_ends_with_1(no_gpu):
    result = run("calibrate")
    assert result.exit_code == 1
    assert "nothing to calibrate: " in result.stdout
    assert run_json("calibrate", exit_code=1)["error"].startswith("nothing to calibrate: ")


def test_json_is_what_was_measured(gpu):
    assert run_json("calibrate") == CALIBRATION
    assert run_json("calibrate", "--device", "0", "--force") == CALIBRATION
    assert gpu == [(None, False), (0, True)]


def test_the_table_shows_the_choice_and_every_form(gpu):
    text = run("calibrate").stdout
    assert "Fake GPU, CUDA driver 13.0" in text
    assert "load, 24 CTAs, pieces of 16384 bytes, 700 GB/s" in text
    assert "lines" in text and "1.250" in text and "650" in text


def test_a_device_that_is_not_there_is_wrong_usage(gpu):
    result = run("calibrate", "--device", "1")
    assert result.exit_code == 2 and "expected an index below 1, got 1" in result.stderr
    assert run("calibrate", "--device", "-1").exit_code == 2


def test_a_failure_on_the_device_is_a_finding(gpu, monkeypatch):
    def fail(device, *, force):
        raise RuntimeError("out of memory\nand a stack")

    monkeypatch.setattr(calibration, "calibrate", fail)
    assert run_json("calibrate", exit_code=1) == {"error": "the calibration failed: out of memory"}


def test_the_fill_curve(gpu, tmp_path):
    assert run("calibrate", "--picture", tmp_path / "fill.svg").exit_code == 0
    drawn = (tmp_path / "fill.svg").read_text()
    assert "chosen: load, 24 CTAs" in drawn and "plain DRAM read, 900 GB/s" in drawn
