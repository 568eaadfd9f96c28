"""The cache of calibrations, over a made-up device: what is believed, what is measured again."""

import json
from dataclasses import asdict

import pytest
import torch

from dsv41_l2pf import calibration
from dsv41_l2pf.calibration import Calibration, cache_file, calibrate, ensure_calibrated

KEY = {"gpu": "Fake GPU / 1", "driver": 13000, "library": "0.1.0"}
MEASURED = dict(
    **KEY, l2_bytes=1 << 25, window_bytes=1 << 22, hot_knee_bytes=1 << 23, dram_read_gbps=900.0, cold_us=5.0, hot_us=2.0,
    after_us={"load": 2.5}, fill_gbps={"load": {"24": 700.0}}, collective_slowdown={"load": 1.0}, form="load",
    num_ctas=24, piece_bytes=16384, start_delay_ns=800, chosen_fill_gbps=700.0, partition_of_sm=[0, 1],
)  # fmt: skip


class FakeOps:
    def __init__(self):
        self.num_measured, self.applied, self.error = 0, [], None

    def calibration_key(self, index):
        return json.dumps(KEY)

    def calibrate(self, index):
        self.num_measured += 1
        if self.error:
            raise RuntimeError(self.error)
        return json.dumps(MEASURED)

    def apply_calibration(self, *args):
        self.applied.append(args)


@pytest.fixture
def ops(monkeypatch, tmp_path):
    fake = FakeOps()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.ops, "dsv41", fake)
    monkeypatch.setattr(calibration, "_calibrated", {})
    return fake


def test_measured_once_then_read_from_the_cache(ops):
    assert asdict(calibrate(0)) == asdict(calibrate("cuda:0")) == MEASURED
    assert ops.num_measured == 1
    assert ops.applied == [(0, "load", 24, 16384, 800, 1 << 23, 700.0, [0, 1])] * 2
    calibrate(0, force=True)
    assert ops.num_measured == 2


def test_the_file_is_named_after_gpu_driver_and_library(ops, tmp_path):
    calibrate(0)
    expected = tmp_path / "dsv41_l2pf" / "calibration" / "fake-gpu-1-13000-0.1.0.json"
    assert cache_file(KEY) == expected and expected.is_file()


@pytest.mark.parametrize(
    "change",
    [{"driver": 12000}, {"gpu": "Other"}, {"num_ctas": 0}, {"cold_us": -1}, {"form": "auto"}, {"partition_of_sm": [2]}]
    + [{"after_us": {"load": "x"}}, {"extra": 1}, {"start_delay_ns": -5}, {"fill_gbps": []}],
)
def test_a_foreign_or_bad_file_is_measured_again(ops, change):
    calibrate(0)
    path = cache_file(KEY)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert asdict(calibrate(0)) == MEASURED
    assert ops.num_measured == 2
    calibrate(0)
    assert ops.num_measured == 2, "the new measurement was kept"


def test_half_a_file_is_measured_again(ops):
    calibrate(0)
    path = cache_file(KEY)
    path.write_bytes(path.read_bytes()[:100])
    calibrate(0)
    assert ops.num_measured == 2


def test_a_folder_that_cannot_be_written_costs_only_the_cache(ops, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert asdict(calibrate(0)) == MEASURED
    assert len(ops.applied) == 1


def test_ensure_calibrated_measures_once_a_process_and_never_raises(ops):
    assert ensure_calibrated(0) == "" == ensure_calibrated(0)
    assert len(ops.applied) == 1
    ops.error = "out of memory\nand more"
    cache_file(KEY).unlink()
    assert ensure_calibrated(1) == "not calibrated: out of memory" == ensure_calibrated(1)
    assert ops.num_measured == 2


def test_a_cpu_has_nothing_to_calibrate(ops):
    with pytest.raises(ValueError, match="expected a CUDA device, got cpu"):
        calibrate("cpu")


@pytest.mark.parametrize("field", list(MEASURED))
def test_every_field_is_needed(field):
    Calibration.from_dict(MEASURED)
    with pytest.raises(ValueError, match="expected the fields"):
        Calibration.from_dict({name: value for name, value in MEASURED.items() if name != field})
