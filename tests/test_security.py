"""What docs/security.md says of our files and of what runs: shown on the code."""

import ast
import json
import logging
import multiprocessing
import os
import re
import stat
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from test_calibration import KEY, MEASURED, FakeOps
from three_linears import Model, X, signature

import dsv41_l2pf as l2pf
from dsv41_l2pf import Config, calibration
from dsv41_l2pf.calibration import cache_file, calibrate
from dsv41_l2pf.files import read_json, write_json
from dsv41_l2pf.tuning import Tuning, WindowSetting, load

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "dsv41_l2pf"

RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
# Modules that run programs, load code or objects from files, or talk to a network.
FORBIDDEN_MODULES = {"subprocess", "pickle", "marshal", "shelve", "runpy", "ctypes"}
FORBIDDEN_MODULES |= {"socket", "urllib", "http", "requests"}
FORBIDDEN_CALLS = re.compile(
    r"torch\.(load|hub|jit\.load|package|utils\.cpp_extension)|os\.(system|popen|exec\w+|spawn\w+)"
)
FORBIDDEN_IN_CPP = re.compile(r"\b(dlopen|dlsym|popen|system|fopen|getenv|socket|nvrtc\w*|std::[io]fstream)\s*\(")


def modules():
    """Of the package, without the demo, which starts its own ranks and reads graphs through the driver."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "demo" not in path.parts]


def what_runs_things(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RUNS_TEXT:
            yield node.func.id
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        yield from (name for name in names if name.split(".")[0] in FORBIDDEN_MODULES)
    yield from (found.group() for found in FORBIDDEN_CALLS.finditer(text))


def test_nothing_is_compiled_evaluated_or_downloaded():
    found = {str(path.relative_to(ROOT)): list(what_runs_things(path.read_text())) for path in modules()}
    assert len(found) > 30 and {path: names for path, names in found.items() if names} == {}
    for path in sorted((ROOT / "csrc").rglob("*.*")):
        assert not FORBIDDEN_IN_CPP.search(path.read_text()), path


def test_the_check_itself():
    text = "import pickle\nfrom urllib.request import x\neval('1')\ntorch.load(f)\nre.compile('')"
    assert list(what_runs_things(text)) == ["pickle", "urllib.request", "eval", "torch.load"]
    assert FORBIDDEN_IN_CPP.search('dlopen("x", 0)') and not FORBIDDEN_IN_CPP.search("load_acquire_system(x)")


def learned(**config):
    model = Model()
    prefetcher = l2pf.attach(model, Config(**config))
    model(X), model(X)
    return model, prefetcher


def tuning_of(prefetcher, **change):
    found = signature(prefetcher)
    kept = ("collective_index", "kind", "window_bytes", "form")
    windows = [
        WindowSetting(**{field: window[field] for field in kept}, budget_bytes=64) for window in found["windows"]
    ]
    tuning = Tuning(2, "decode", found["num_collectives"], windows, 0.9, 0.001, 5.0, "by hand", {})
    return Tuning.from_dict({**asdict(tuning), **change})


def numbers_and_texts(value):
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return [leaf for item in value for leaf in numbers_and_texts(item)]
    return [value]


def test_a_saved_tuning_holds_no_address_and_is_its_owners_alone(tmp_path):
    model, prefetcher = learned()
    prefetcher.tunings.note(tuning_of(prefetcher))
    path = tmp_path / "new" / "tuned.json"
    prefetcher.save_tunings(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    leaves = numbers_and_texts(json.loads(path.read_text()))
    largest = max(window["window_bytes"] for window in signature(prefetcher)["windows"])
    assert all(leaf <= largest for leaf in leaves if isinstance(leaf, int)), "an address is larger than any window"
    assert not any("0x" in leaf or "weight" in leaf for leaf in leaves if isinstance(leaf, str))


def test_a_file_can_only_choose_among_the_windows_that_were_learned(tmp_path):
    """The largest budget that a file can ask for is cut to the window, and another plan's file does nothing."""
    model, prefetcher = learned()
    before = prefetcher.plan_segments(2)
    greedy = tuning_of(prefetcher)
    entry = asdict(greedy)
    for window in entry["windows"]:
        window["budget_bytes"] = (1 << 63) - 1
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"format": 1, "library": "0", "tunings": [entry]}))
    prefetcher.load_tunings(path)
    assert torch.equal(model(X), Model.forward(model, X))
    assert prefetcher.plan_segments(2) == before
    for window in signature(prefetcher)["windows"]:
        assert window["budget_bytes"] == window["window_bytes"]
    entry["windows"][0]["window_bytes"] += 16
    path.write_text(json.dumps({"format": 1, "library": "0", "tunings": [entry]}))
    settings = signature(prefetcher)["windows"]
    prefetcher.load_tunings(path)
    model(X)
    assert signature(prefetcher)["windows"] == settings
    assert "the loaded tuning is of another plan" in signature(prefetcher)["reason"]


def test_texts_of_a_file_are_shown_and_nothing_else(tmp_path):
    model, prefetcher = learned()
    reason = "__import__('os').system('touch x') {0.__class__} %s [red]\x1b[2J"
    entry = asdict(tuning_of(prefetcher, reason=reason))
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"format": 1, "library": "0", "tunings": [entry]}))
    prefetcher.load_tunings(path)
    model(X)
    assert signature(prefetcher)["tuned"]["reason"] == reason
    str(prefetcher.report())
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["x.json"]


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path):
    target, path = tmp_path / "target", tmp_path / "x.json"
    target.write_text("not ours")
    path.symlink_to(target)
    write_json(path, 1, {"a": 1})
    assert not path.is_symlink() and target.read_text() == "not ours" and read_json(path, 1) == {"a": 1}


def _write_and_read(path, index):
    for i in range(50):
        write_json(path, 1, {"writer": index, "round": i, "filling": "x" * 20_000})
        found = read_json(path, 1)
        assert found is not None and len(found["filling"]) == 20_000


def test_eight_processes_write_one_cache_file(tmp_path):
    path = tmp_path / "cache" / "x.json"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_and_read, args=(path, index)) for index in range(8)]
    [writer.start() for writer in writers]
    [writer.join(60) for writer in writers]
    assert [writer.exitcode for writer in writers] == [0] * 8
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"], "no part is left behind"


@pytest.fixture
def fake_ops(monkeypatch, tmp_path):
    fake = FakeOps()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.ops, "dsv41", fake)
    monkeypatch.setattr(calibration, "_calibrated", {})
    return fake


def test_a_cached_calibration_that_the_library_refuses_is_measured_again(fake_ops, monkeypatch, caplog):
    calibrate(0)
    path = cache_file(KEY)
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_ctas": 1 << 40}))

    def apply(index, form, num_ctas, *rest):
        if num_ctas > 1000:
            raise ValueError(f"expected `num_ctas` of at most four an SM, got {num_ctas}")
        fake_ops.applied.append(num_ctas)

    monkeypatch.setattr(fake_ops, "apply_calibration", apply, raising=False)
    with caplog.at_level(logging.WARNING):
        assert asdict(calibrate(0)) == MEASURED
    assert fake_ops.num_measured == 2 and fake_ops.applied[-1] == MEASURED["num_ctas"]
    assert "is not used, measuring again: expected `num_ctas`" in caplog.text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_name_of_a_gpu_cannot_leave_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = cache_file({**KEY, "gpu": "../../../etc/passwd\x00"})
    assert path.parent == tmp_path / "dsv41_l2pf" / "calibration" and os.sep not in path.name and "\x00" not in path.name


def test_a_cache_folder_from_the_environment_must_be_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_file(KEY).is_relative_to(Path.home())


def test_a_file_with_a_special_number_or_a_second_key_is_refused(tmp_path):
    path = tmp_path / "x.json"
    _, prefetcher = learned()
    entry = asdict(tuning_of(prefetcher))
    for bad in ({"ratio": float("nan")}, {"step_us": float("-inf")}, {"num_tokens": True}, {"__class__": "os"}):
        path.write_text(json.dumps({"format": 1, "tunings": [{**entry, **bad}]}))
        with pytest.raises(ValueError, match="^tuning: "):
            load(path)
