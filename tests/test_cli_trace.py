"""`trace FILE`: the slices of an eager step on CPU, and their JSON."""

import json

import pytest
import torch
from cli_runner import run, run_json
from three_linears import HIDDEN, Model, X

import dsv41_l2pf as l2pf
from dsv41_l2pf.trace import trace_eager_step
from dsv41_l2pf.trace.recorder import StepRecorder
from dsv41_l2pf.trace.slices import slices_of


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def events_of(path, phase="X"):
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == phase]


def test_the_file_has_a_slice_a_window_with_names_and_bytes(no_gpu, tmp_path):
    path = tmp_path / "trace.json"
    found = run_json("trace", path, "--picture", tmp_path / "timeline.svg")
    windows = [event for event in events_of(path) if event["cat"] == "windows"]
    assert [event["name"] for event in windows][:2] == [
        "l2pf window 0 (layers.0.mlp.{up, down})",
        "l2pf window 1 (layers.1.attention.{qkv, o})",
    ]
    assert windows[-1]["name"] == "l2pf window 7 (head)"
    assert windows[0]["args"]["window_bytes"] == 2 * 3 * 512 * 512 * 4
    assert len(found["slices"]) == len(events_of(path)) and found["no_gpu"]
    threads = {event["args"]["name"]: event["tid"] for event in events_of(path, "M") if event["name"] == "thread_name"}
    assert list(threads) == ["forward", "collectives", "windows", "reads"]
    assert all(event["tid"] == threads[event["cat"]] for event in events_of(path))
    assert "6.0 MiB" in (tmp_path / "timeline.svg").read_text()


def test_the_words_that_people_read(no_gpu, tmp_path):
    result = run("trace", tmp_path / "trace.json")
    assert result.exit_code == 0
    assert "8 windows" in result.stdout and "timed in eager code on the CPU" in result.stdout


def test_a_folder_that_is_not_there_is_wrong_usage(tmp_path):
    assert run("trace", tmp_path / "missing" / "trace.json").exit_code == 2
    assert run("trace", tmp_path).exit_code == 2
    assert run("trace", tmp_path / "trace.json", "--picture", tmp_path / "missing" / "a.png").exit_code == 2
    assert list(tmp_path.iterdir()) == []


class Ticks:
    """A clock that counts: mark i is at i us."""

    def __init__(self):
        self.num_marks = 0

    def mark(self):
        self.num_marks += 1

    def times_us(self):
        return [float(i) for i in range(self.num_marks)]


def test_slices_lie_between_the_marks_of_their_collectives():
    model = Model()
    prefetcher = l2pf.attach(model, l2pf.Config())
    model(X), model(X)
    prefetcher.windows.observer = recorder = StepRecorder(Ticks())
    model(X), model(X)  # the second forward is not recorded
    slices = {(slice.track, slice.name): (slice.begin_us, slice.end_us) for slice in slices_of(prefetcher, recorder)}
    assert slices == {
        ("forward", "forward decode, 2 tokens"): (0, 5),
        ("reads", "before the first collective"): (0, 1),
        ("collectives", "all_reduce 0"): (1, 2),
        ("windows", "l2pf window 0 (b)"): (1, 2),
        ("reads", "b"): (2, 3),
        ("collectives", "all_reduce 1"): (3, 4),
        ("windows", "l2pf window 1 (c)"): (3, 4),
        ("reads", "c"): (4, 5),
    }


def test_a_window_that_is_off_has_no_slice_and_the_observer_is_taken_off_again():
    model = Model()
    prefetcher = l2pf.attach(model, l2pf.Config())
    model(X), model(X)
    prefetcher.set_window(0, num_tokens=2, budget_bytes=0)
    names = [slice.name for slice in trace_eager_step(prefetcher, lambda: model(X)) if slice.track == "windows"]
    assert names == ["l2pf window 1 (c)"]
    assert prefetcher.windows.observer is None


def test_times_of_an_eager_step_are_real():
    model = Model()
    prefetcher = l2pf.attach(model, l2pf.Config())
    model(X), model(X)
    slices = trace_eager_step(prefetcher, lambda: model(X))
    forward = next(slice for slice in slices if slice.track == "forward")
    collectives = [slice for slice in slices if slice.track == "collectives"]
    assert all(slice.duration_us >= 1.0 for slice in collectives)  # what the emulated peers take
    assert all(0 <= slice.begin_us <= slice.end_us <= forward.end_us for slice in slices)
    reads = next(slice for slice in slices if slice.name == "b")
    assert reads.arguments["read_bytes"] == HIDDEN * HIDDEN * 4


def test_a_step_without_a_forward_is_refused():
    prefetcher = l2pf.Prefetcher(l2pf.Config())
    with pytest.raises(RuntimeError, match="expected a forward that the prefetcher counts, got none"):
        trace_eager_step(prefetcher, lambda: None)


def test_windows_that_the_model_brackets_itself_are_numbered_too():
    class Bracketed(Model):
        def forward(self, hidden_states):
            x = self.a(hidden_states)
            torch.ops.dsv41.collective_begin(x, "all_gather")
            torch.ops.dsv41.emulated_all_reduce(x, 1.0)
            torch.ops.dsv41.collective_end(x)
            x = self.b(x)
            torch.ops.dsv41.emulated_all_reduce(x, 1.0)
            return self.c(x)

    model = Bracketed()
    prefetcher = l2pf.attach(model, l2pf.Config())
    model(X), model(X)
    slices = trace_eager_step(prefetcher, lambda: model(X))
    assert [slice.name for slice in slices if slice.track == "collectives"] == ["all_gather 0", "all_reduce 1"]
    assert [slice.name for slice in slices if slice.track == "windows"] == ["l2pf window 0 (b)", "l2pf window 1 (c)"]
