"""`report FILE`: each kind of file, what is a finding in it, and files that are none of ours."""

import json

import pytest
from cli_runner import CALIBRATION, run, run_json
from three_linears import Model, X

import dsv41_l2pf as l2pf
from dsv41_l2pf import tuning
from dsv41_l2pf.tuning import Tuning, WindowSetting

TUNING = Tuning(
    num_tokens=4,
    mode="decode",
    num_collectives=2,
    windows=[
        WindowSetting(0, "all_reduce", 2 << 20, 1 << 20, "load"),
        WindowSetting(1, "all_reduce", 1 << 20, 0, "load"),
    ],
    ratio=0.9625,
    noise=0.004,
    step_us=812.5,
    reason="1 MiB a window is the fastest",
    measured={"a slower one": 0.97, "the best": 0.9625},
)


@pytest.fixture
def status_file(tmp_path):
    def write(**changes):
        model = Model()
        prefetcher = l2pf.attach(model, l2pf.Config())
        model(X), model(X)
        path = tmp_path / "status.json"
        path.write_text(json.dumps({**prefetcher.status(), **changes}))
        prefetcher.detach()
        return path

    return write


def test_tunings(tmp_path):
    path = tmp_path / "tunings.json"
    tuning.save(path, [TUNING], "0.1.0")
    found = run_json("report", path)
    assert found["kind"] == "tunings" and found["findings"] == []
    assert found["content"]["tunings"][0]["windows"][0]["budget_bytes"] == 1 << 20
    text = run("report", path).stdout
    assert "step time 0.9625 of off" in text and "1 MiB a window is the fastest" in text
    assert "1 of 2 windows are on" in text and text.index("the best") < text.index("a slower one")


def test_a_calibration(tmp_path):
    path = tmp_path / "fake.json"
    path.write_text(json.dumps({"format": 1, **CALIBRATION}))
    assert run_json("report", path, "--picture", tmp_path / "fill.png") == {
        "kind": "calibration", "findings": [], "content": CALIBRATION,
    }  # fmt: skip
    assert (tmp_path / "fill.png").read_bytes().startswith(b"\x89PNG")
    assert "Fake GPU" in run("report", path).stdout


def test_a_status_of_a_prefetcher(status_file):
    path = status_file()
    found = run_json("report", path)
    assert found["kind"] == "status" and found["content"]["signatures"][0]["num_windows"] == 2
    text = run("report", path).stdout
    assert "0 all_reduce" in text and "planned" in text


def test_a_status_that_says_off_is_a_finding(status_file):
    path = status_file(reason="off: DSV41_L2_PREFETCH=0")
    assert run_json("report", path, exit_code=1)["findings"] == ["off: DSV41_L2_PREFETCH=0"]
    assert "finding: off: DSV41_L2_PREFETCH=0" in run("report", path).stdout


def test_the_status_of_the_library(tmp_path):
    path = tmp_path / "status.json"
    path.write_text(json.dumps(run_json("status")))
    assert run_json("report", path)["kind"] == "status"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "expected JSON"),
        ("[]", "got list"),
        ('{"a": 1}', "got an object with a"),
        ('{"signatures": [{}]}', "expected a status of this library"),
        ('{"signatures": 5}', "expected a status of this library"),
        (json.dumps({"format": 1, **CALIBRATION, "num_ctas": 0}), "num_ctas: expected a whole number > 0, got 0"),
        (json.dumps({"format": 9, "tunings": []}), "format"),
    ],
)
def test_a_file_that_is_none_of_ours_is_wrong_usage(tmp_path, text, said):
    path = tmp_path / "file.json"
    path.write_text(text)
    result = run("report", path)
    assert result.exit_code == 2 and said in " ".join(result.stderr.replace("│", " ").split())


def test_a_file_that_is_not_there_and_a_picture_of_no_calibration(tmp_path, status_file):
    assert run("report", tmp_path / "missing.json").exit_code == 2
    assert run("report", status_file(), "--picture", tmp_path / "a.png").exit_code == 2
