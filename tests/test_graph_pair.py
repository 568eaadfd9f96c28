"""A graph and its twin without windows in an engine: what is captured, which one runs, what stays. The engine is fake."""

import gc
import logging
import weakref

import pytest
import torch

import dsv41_l2pf  # noqa: F401  (loads the operators)
from dsv41_l2pf import live_tuning
from dsv41_l2pf.config import Config
from dsv41_l2pf.integrations.graph_pair import Kept, capture_pair
from dsv41_l2pf.integrations.session import Session

LOGGER = logging.getLogger("dsv41_l2pf")
TOKENS = 4


class Graph:
    """What a fake capture leaves: it remembers whether windows were opened while it was captured."""

    def __init__(self, backend, has_windows):
        self.backend, self.has_windows, self.was_reset = backend, has_windows, False

    def replay(self):
        self.backend.ran.append(self)
        Span.now_us = 1000.0 - (self.backend.gain if self.has_windows else 0)

    def reset(self):
        self.was_reset = True


class Backend:
    """Holds a graph for each shape, as SGLang's does. Its model: a linear, a collective, a linear."""

    def __init__(self, session, gain):
        self.session, self.gain = session, gain
        self.graphs, self.outputs, self.ran, self.fails_at = {}, {}, [], None
        self.num_captures = self.num_opened = 0
        self.model = torch.nn.ParameterList(torch.randn(64, 64) for _ in range(2)).requires_grad_(False)
        self.all_reduce = session.collective(lambda x: x, "all_reduce", lambda args, kwargs: args[0])
        open_window = session.prefetcher.windows.open

        def opening(*args):
            opened = open_window(*args)
            self.num_opened += bool(opened)
            return opened

        session.prefetcher.windows.open = opening

    def linear(self, weight, x):
        # Also in what stands for a captured forward: on a CPU nothing is frozen by a capture.
        self.session.prefetcher.windows.record([weight])
        return x @ weight

    def forward(self, captures=False, mode="decode"):
        with self.session.forward(self.model, TOKENS, mode, captures=captures):
            x = self.all_reduce(self.linear(self.model[0], torch.ones(TOKENS, 64)))
            return self.linear(self.model[1], x)

    def capture_one(self, key, num_forwards=1):
        self.num_captures += 1
        for _ in range(2):
            self.forward()
        if self.num_captures == self.fails_at:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        opened = self.num_opened
        for i in range(num_forwards):
            self.forward(captures=True, mode="decode" if i == 0 else "target_verify")
        self.put(key, Kept(Graph(self, self.num_opened > opened), f"output {self.num_captures}"))

    def put(self, key, kept):
        self.graphs[key], self.outputs[key] = kept

    def capture(self, key, **options):
        def capture():
            self.capture_one(key, **options)
            return Kept(self.graphs[key], self.outputs[key])

        capture_pair(self.session, capture, lambda kept: self.put(key, kept))

    def replay(self, key):
        self.graphs[key].replay()
        return self.outputs[key]

    def serve(self, key, num_steps=1200):
        for _ in range(num_steps):
            self.replay(key)
        return self.graphs[key]


class Span:
    now_us = 0.0

    def end(self):
        self.taken_us = Span.now_us

    def us(self):
        return self.taken_us


@pytest.fixture(autouse=True)
def fake_spans(monkeypatch):
    monkeypatch.setattr(live_tuning.LiveTuning.__init__, "__kwdefaults__", {"rounds": 4, "span": Span})


def backend(gain, **config):
    return Backend(Session(Config(tune=config.pop("tune", True), **config), LOGGER), gain)


def test_without_being_asked_it_captures_once_and_leaves_replays_alone():
    engine = backend(-20, tune=False)
    engine.capture("4")
    assert engine.num_captures == 1 and engine.graphs["4"].has_windows
    assert engine.serve("4", 50).has_windows and set(engine.ran) == {engine.graphs["4"]}


def test_the_second_capture_has_no_windows_and_the_first_one_is_in_use():
    engine = backend(50)
    engine.capture("4")
    assert engine.num_captures == 2 and engine.graphs["4"].has_windows


@pytest.mark.parametrize(("gain", "stays"), [(50, True), (-20, False), (0, False)])
def test_both_take_turns_and_the_faster_one_stays(gain, stays, caplog):
    engine = backend(gain)
    engine.capture("4")
    with caplog.at_level(logging.INFO):
        graph = engine.serve("4")
    assert graph.has_windows is stays
    counts = [engine.ran[:600].count(graph) for graph in dict.fromkeys(engine.ran)]
    assert len(counts) == 2 and min(counts) > 100
    assert set(engine.ran[-100:]) == {graph}
    assert type(graph) is Graph, "nothing of ours is between the engine and its graph any more"
    verb = "on" if stays else "off"
    assert f"dsv41_l2pf: tuned tokens=4 mode=decode: {verb} by tune: the best settings (automatic) took" in caplog.text


def test_a_second_capture_that_fails_leaves_the_first_graph(caplog):
    engine = backend(50)
    engine.fails_at = 2
    engine.capture("4")
    assert engine.serve("4", 20).has_windows
    assert "dsv41_l2pf: tokens=4 mode=decode is not tuned: CUDA out of memory" in caplog.text
    assert not engine.session._local.suspended


def test_a_first_capture_that_fails_is_the_engines_own_error():
    engine = backend(50)
    engine.fails_at = 1
    with pytest.raises(torch.cuda.OutOfMemoryError):
        engine.capture("4")
    assert engine.graphs == {} and engine.num_captures == 1


def test_a_graph_of_two_forwards_and_one_without_windows_are_left_alone():
    engine = backend(50)
    engine.capture("both", num_forwards=2)
    assert engine.num_captures == 1
    engine = backend(50, max_tokens=TOKENS - 1)
    engine.capture("4")
    assert engine.num_captures == 1 and not engine.graphs["4"].has_windows


def test_nothing_is_measured_while_weights_change():
    engine = backend(50)
    engine.capture("4")
    engine.serve("4", 60)
    with engine.session.update():
        before = len(engine.ran)
        engine.serve("4", 60)
        assert len(set(engine.ran[before:])) == 1
    assert engine.serve("4").has_windows


def test_weights_that_were_replaced_end_it_without_windows(caplog):
    engine = backend(50)
    engine.capture("4")
    engine.serve("4", 60)
    engine.session.prefetcher.invalidate()
    assert not engine.serve("4", 60).has_windows
    assert "is not tuned, and runs without windows: expected a signature with a plan" in caplog.text


def test_a_new_capture_of_a_shape_begins_anew():
    engine = backend(50)
    engine.capture("4")
    engine.serve("4", 60)
    earlier = set(engine.ran)
    engine.capture("4")
    engine.serve("4")
    assert engine.num_captures == 4 and not earlier & set(engine.ran[60:])


def test_the_output_is_that_of_the_graph_that_ran():
    engine = backend(50)
    engine.capture("4")
    outputs = {True: "output 1", False: "output 2"}
    for _ in range(1200):
        output = engine.replay("4")
        assert output == outputs[engine.ran[-1].has_windows]


def test_the_slower_graph_is_let_go():
    engine = backend(50)
    engine.capture("4")
    engine.serve("4", 30)
    slower = next(weakref.ref(graph) for graph in engine.ran if not graph.has_windows)
    engine.serve("4")
    engine.ran.clear()
    assert slower() is None


def test_an_engine_that_drops_its_graphs_drops_both():
    engine = backend(50)
    engine.capture("4")
    engine.serve("4", 30)
    engine.graphs["4"].reset()
    assert all(graph.was_reset for graph in engine.ran)
    assert engine.graphs["4"].has_windows is engine.ran[-1].has_windows, "what else is asked of it, the graph answers"
    graphs = [weakref.ref(graph) for graph in set(engine.ran)]
    engine.graphs.clear()
    engine.ran.clear()
    gc.collect()
    assert [graph() for graph in graphs] == [None, None]


def test_the_next_start_finds_what_was_decided(tmp_path, caplog):
    path = tmp_path / "tunings.json"
    for gain, stays in ((50, True), (-20, False)):
        path.unlink(missing_ok=True)
        engine = backend(gain, tunings=str(path))
        engine.capture("4")
        engine.serve("4")
        caplog.clear()
        with caplog.at_level(logging.INFO):
            later = backend(gain, tunings=str(path))
            later.capture("4")
        assert later.num_captures == 1, "it is not tuned again"
        assert f"dsv41_l2pf: 1 tunings from {path}" in caplog.text
        (signature,) = later.session.prefetcher.status()["signatures"]
        assert (signature["windows"][0]["budget_bytes"] > 0) is stays


def test_a_file_that_is_not_one_of_tunings_is_left_as_it_is(tmp_path, caplog):
    path = tmp_path / "notes.txt"
    path.write_text("not JSON")
    engine = backend(50, tunings=str(path))
    engine.capture("4")
    engine.serve("4")
    assert path.read_text() == "not JSON"
    assert f"dsv41_l2pf: no tunings, and none will be written: {path}: expected JSON" in caplog.text


@pytest.mark.parametrize(("tune", "said"), [(False, True), (True, False)])
def test_a_file_that_is_not_there_is_a_warning_unless_it_will_be_written(tmp_path, caplog, tune, said):
    engine = backend(50, tune=tune, tunings=str(tmp_path / "none.json"))
    engine.capture("4")
    assert ("dsv41_l2pf: no tunings: " in caplog.text) is said


def test_a_file_that_cannot_be_written_is_said_once(tmp_path, caplog):
    engine = backend(50, tunings=str(tmp_path / "no_folder" / "tunings.json"))
    (tmp_path / "no_folder").write_text("a file where a folder is needed")
    engine.capture("4")
    engine.serve("4")
    engine.capture("4")
    assert caplog.text.count("tunings cannot be written") == 1 and engine.graphs["4"].has_windows
