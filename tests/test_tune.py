"""Prefetcher.tune on the CPU: what it sets, says, saves and loads."""

import json

import pytest
from three_linears import Model, X, signature

import dsv41_l2pf as l2pf
from dsv41_l2pf import Config
from dsv41_l2pf.tune import window_groups
from dsv41_l2pf.tuning import Tuning, load, save


def learned():
    model = Model()
    prefetcher = l2pf.attach(model, Config())
    model(X), model(X)
    return model, prefetcher


def budgets(prefetcher):
    return [window["budget_bytes"] for window in signature(prefetcher)["windows"]]


def tuned(model, prefetcher, **options):
    return prefetcher.tune(lambda: model(X), rounds=2, progress=False, **options)


def test_the_windows_are_left_as_the_tuning_says():
    model, prefetcher = learned()
    found = tuned(model, prefetcher, num_tokens=2, mode="decode")
    assert budgets(prefetcher) == [window.budget_bytes for window in found.windows]
    assert found.num_collectives == 2 and found.step_us > 0
    assert signature(prefetcher)["tuned"]["ratio"] == found.ratio


def test_off_by_tune_is_said_in_status_and_survives_more_eager_forwards(monkeypatch):
    model, prefetcher = learned()
    monkeypatch.setattr("dsv41_l2pf.tune.stopwatch", lambda: lambda step, num_steps: 100.0)  # nothing ever helps
    found = tuned(model, prefetcher)
    assert found.is_off and found.num_off == 2
    model(X)
    assert budgets(prefetcher) == [0, 0]
    assert signature(prefetcher)["reason"].startswith("off by tune: ")


def test_a_saved_tuning_is_applied_once_its_signature_is_learned(tmp_path):
    model, prefetcher = learned()
    prefetcher.tunings.note(half_of(prefetcher))
    prefetcher.save_tunings(tmp_path / "tuned.json")
    other_model, other = Model(), l2pf.Prefetcher(Config())
    other.attach(other_model)
    other.load_tunings(tmp_path / "tuned.json")
    other_model(X)
    assert budgets(other) == [8192, 8192]
    other_model(X)
    assert budgets(other) == [8192, 8192]
    assert signature(other)["tuned"]["reason"] == "by hand"


def half_of(prefetcher):
    found = signature(prefetcher)
    windows = [
        {"budget_bytes": 8192, **{name: window[name] for name in ("collective_index", "kind", "window_bytes", "form")}}
        for window in found["windows"]
    ]
    return Tuning.from_dict(
        dict(num_tokens=2, mode="decode", num_collectives=2, windows=windows, ratio=0.9, noise=0.001, step_us=5.0)
        | dict(reason="by hand", measured={})
    )


def test_a_tuning_of_another_plan_changes_nothing_and_is_named(tmp_path):
    model, prefetcher = learned()
    found = half_of(prefetcher)
    wrong = Tuning(**{**found.__dict__, "num_collectives": 3})
    save(tmp_path / "tuned.json", [wrong], "0")
    before = budgets(prefetcher)
    prefetcher.load_tunings(tmp_path / "tuned.json")
    model(X)
    assert budgets(prefetcher) == before
    assert "expected 3 collectives, got 2" in signature(prefetcher)["reason"]


@pytest.mark.parametrize(
    "options, message",
    [({"num_tokens": 7}, "those learned: 2 tokens in mode decode"), ({"mode": "draft_extend"}, "expected one signature")],
)
def test_a_signature_that_was_not_learned_is_an_error(options, message):
    model, prefetcher = learned()
    with pytest.raises(ValueError, match=message):
        tuned(model, prefetcher, **options)


def test_one_round_is_too_few():
    _, prefetcher = learned()
    with pytest.raises(ValueError, match="expected at least 2 rounds, got 1"):
        prefetcher.tune(lambda: None, rounds=1, progress=False)


def test_inside_a_capture_nothing_is_measured(monkeypatch):
    _, prefetcher = learned()
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="expected a stream that is not being captured"):
        prefetcher.tune(lambda: pytest.fail("a step was run"), progress=False)


def test_windows_of_one_layer_position_are_one_group():
    _, prefetcher = learned()
    assert window_groups(prefetcher, signature(prefetcher)) == [[0], [1]]  # b and c are other weights


@pytest.mark.parametrize(
    "change, message",
    [
        ({"ratio": float("inf")}, "ratio: expected a finite number"),
        ({"num_tokens": -1}, "num_tokens: expected a whole number >= 0"),
        ({"windows": 5}, "windows: expected a list"),
        ({"windows": [{}]}, "window: expected an object with"),
        ({"measured": {"a": "b"}}, "measured: expected numbers"),
        ({"extra": 1}, "tuning: expected an object with"),
    ],
)
def test_a_file_that_is_not_a_tuning_is_refused(tmp_path, change, message):
    model, prefetcher = learned()
    prefetcher.tunings.note(half_of(prefetcher))
    path = tmp_path / "tuned.json"
    prefetcher.save_tunings(path)
    content = json.loads(path.read_text())
    content["tunings"][0].update(change)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.json"):
        load(tmp_path / "none.json")
