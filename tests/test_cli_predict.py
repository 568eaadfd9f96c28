"""`predict`: figures of the paper model, chosen GPUs, pictures, wrong usage."""

import pytest
from cli_runner import run, run_json

from dsv41_l2pf.config import MIB
from dsv41_l2pf.predict import GPUS, WINDOWS_US, predictions


def test_every_known_gpu_and_window_is_predicted():
    found = run_json("predict")
    assert found["weight_bytes"] == 16 * MIB
    assert len(found["predictions"]) == len(GPUS) * len(WINDOWS_US)
    for row in found["predictions"]:
        expected = predictions(16 * MIB, row["window_us"])[row["gpu"]]
        assert (row["saved_low_us"], row["saved_high_us"]) == expected


def test_one_gpu_with_windows_and_weights_of_ones_own():
    found = run_json("predict", "--gpu", "gb10", "--window-us", "20", "--window-us", "10", "--weight-mib", "0.5")
    assert [(row["gpu"], row["window_us"]) for row in found["predictions"]] == [("GB10", 10.0), ("GB10", 20.0)]
    assert found["weight_bytes"] == MIB // 2 and list(found["basis"]) == ["GB10"]


def test_the_table_shows_what_was_asked_for():
    text = run("predict", "--gpu", "H200", "--window-us", "26").stdout
    assert "H200" in text and "26 us" in text and "GB10" not in text and "50 us" not in text


@pytest.mark.parametrize(
    "arguments",
    [("--gpu", "H9000"), ("--window-us", "0"), ("--window-us", "nan"), ("--weight-mib", "-1"), ("--picture", "a.pdf")],
)
def test_wrong_usage_ends_with_2(arguments):
    result = run("predict", *arguments)
    assert result.exit_code == 2 and "expected" in result.stderr


@pytest.mark.parametrize(("name", "start"), [("saving.png", b"\x89PNG"), ("saving.svg", b"<?xml")])
def test_the_picture_is_of_the_kind_that_its_name_says(tmp_path, name, start):
    path = tmp_path / name
    assert run("predict", "--picture", path).exit_code == 0
    assert path.read_bytes().startswith(start)
