"""The command line on a real GPU: what it measures, and that a prefetch brings something."""

import pytest
import torch
from cli_runner import run_json

from dsv41_l2pf.calibration import current_gpu_reason
from dsv41_l2pf.doctor.self_test import run_self_test

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    for name in ("DSV41_L2_PREFETCH", "DSV41_L2_PREFETCH_FORM", "DSV41_L2_PREFETCH_MB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_self_test_measures_a_read_that_a_window_made_faster():
    assert current_gpu_reason() == ""  # measured once a process, and not counted below
    found = run_self_test(on_gpu=True)
    assert (found.problem, found.num_windows, found.num_launched) == ("", 1, 1)
    assert found.after_us < found.cold_us and found.hot_us < found.cold_us
    assert found.elapsed_s < 2


def test_calibrate_then_the_doctor_says_on(tmp_path):
    measured = run_json("calibrate")
    assert measured["gpu"] == torch.cuda.get_device_name()
    found = run_json("doctor")
    assert found["on"] and found["findings"] == [], found["findings"]
    (calibration,) = found["calibrations"]
    assert 0 in calibration["gpus"] and calibration["values"] == measured
    assert found["gpus"][0]["forms"] and found["driver"]


def test_trace_writes_windows_of_a_replayed_graph(tmp_path):
    found = run_json("trace", str(tmp_path / "trace.json"))
    assert found["no_gpu"] == ""
    windows = [slice for slice in found["slices"] if slice["track"] == "windows"]
    assert len(windows) == 8 and windows[-1]["name"] == "l2pf window 7 (head)"
    assert all(slice["duration_us"] > 15 for slice in windows)  # the emulated peers take 20 us
