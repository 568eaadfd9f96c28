"""A session: which forwards, collectives and reads of an engine count. The engine is a fake one."""

import logging
import threading

import pytest
import torch

import dsv41_l2pf  # noqa: F401  (loads the operators)
from dsv41_l2pf.config import Config
from dsv41_l2pf.integrations.reads import layer_tensors
from dsv41_l2pf.integrations.session import Session

LOGGER = logging.getLogger("dsv41_l2pf")


class Layer(torch.nn.Module):
    def __init__(self, rows=256):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(rows, 256), requires_grad=False)


class Engine:
    """A fake engine: a group, linear methods, a model; its collectives call their bodies as SGLang's do."""

    def __init__(self, session):
        self.session, self.world_size, self.calls = session, 2, []
        self.layers = torch.nn.ModuleList(Layer() for _ in range(4))
        self.body = session.collective(self._body, "all_reduce", lambda a, k: a[0])
        self.all_reduce = session.collective(self._outer, "all_reduce", lambda a, k: a[0], lambda a, k: self.world_size > 1)
        self.linear = session.reading(lambda layer, x: x @ layer.weight, lambda a, k: layer_tensors(a[0]))

    def _body(self, x):
        self.calls.append("body")
        return x

    def _outer(self, x):
        return self.body(x) if self.world_size > 1 else x

    def run(self, tokens=4, mode="decode", steps=None):
        with self.session.forward(self.layers, tokens, mode):
            x = torch.ones(tokens, 256)
            for layer in self.layers:
                x = self.all_reduce(self.linear(layer, x))
                if steps:
                    steps()
        return x


@pytest.fixture
def engine():
    return Engine(Session(Config(form="load"), LOGGER))


def signatures(session):
    return session.prefetcher.status()["signatures"]


def test_nested_collectives_count_once_and_plans_hold_what_follows(engine):
    engine.run()
    engine.run()
    (signature,) = signatures(engine.session)
    assert (signature["num_collectives"], signature["num_windows"], signature["num_launched"]) == (4, 3, 3)
    segments = engine.session.prefetcher.plan_segments(4, model=engine.layers)
    assert segments == [(k, engine.layers[k + 1].weight.data_ptr(), 256 * 256 * 4) for k in range(3)]


def test_a_group_of_one_and_calls_outside_a_forward_are_not_numbered(engine):
    engine.all_reduce(torch.ones(1))
    engine.world_size = 1
    engine.run()
    assert signatures(engine.session)[0]["num_collectives"] == 0


def test_a_nested_forward_belongs_to_the_outer_one(engine):
    inner = Engine(engine.session)
    engine.run(steps=None)
    with engine.session.forward(engine.layers, 4, "decode"):
        inner.run()
    assert len(signatures(engine.session)) == 1


def test_dummy_runs_are_not_learned_and_variants_are_kept_apart(engine):
    with engine.session.suspended():
        engine.run()
    assert signatures(engine.session) == []
    engine.run()
    with engine.session.variant("lora"):
        engine.run()
    assert sorted(s["mode"] for s in signatures(engine.session)) == ["decode", "decode/lora"]


def test_a_collective_that_raises_leaves_the_next_one_whole(engine):
    def fails(x):
        raise RuntimeError("peer gone")

    broken = engine.session.collective(fails, "all_reduce", lambda a, k: a[0])
    with engine.session.forward(engine.layers, 4, "decode"):
        with pytest.raises(RuntimeError, match="peer gone"):
            broken(torch.ones(1))
        engine.all_reduce(torch.ones(1))
    with pytest.raises(RuntimeError, match="peer gone"):
        with engine.session.forward(engine.layers, 4, "decode"):
            broken(torch.ones(1))
    engine.run()
    engine.run()
    assert signatures(engine.session)[0]["num_launched"] == 3


def test_another_thread_is_not_in_this_forward(engine):
    seen = []
    with engine.session.forward(engine.layers, 4, "decode"):
        thread = threading.Thread(target=lambda: seen.append(engine.session.in_forward))
        thread.start()
        thread.join()
        assert engine.session.in_forward
    assert seen == [False] and not engine.session.in_forward


def test_side_stream_weights_come_after_the_main_streams(engine, monkeypatch):
    stream = ["main"]
    monkeypatch.setattr("dsv41_l2pf.integrations.session.cuda_in_use", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream[0])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    side, main = Layer(), Layer()
    x = torch.ones(4, 256)
    with engine.session.forward(engine.layers, 4, "decode"):
        engine.all_reduce(x)
        stream[0] = "side"
        engine.linear(side, x)
        stream[0] = "main"
        engine.linear(main, x)
        engine.all_reduce(x)
    segments = engine.session.prefetcher.plan_segments(4, model=engine.layers)
    assert [address for _, address, _ in segments] == [main.weight.data_ptr(), side.weight.data_ptr()]


def test_an_update_in_place_pauses_and_resumes(engine):
    engine.run()
    (before,) = signatures(engine.session)
    with engine.session.update():
        assert all(w["budget_bytes"] == 0 for w in signatures(engine.session)[0]["windows"])
        engine.run()
        engine.layers[1].weight.copy_(torch.ones(256, 256))
    (after,) = signatures(engine.session)
    assert [w["budget_bytes"] for w in after["windows"]] == [w["budget_bytes"] for w in before["windows"]]
    assert (after["state"], after["num_eager"]) == ("planned", 1)


def test_an_update_that_moves_weights_drops_the_plans(engine, caplog):
    engine.run()
    with engine.session.update(), engine.session.update():
        engine.layers[1].weight = torch.nn.Parameter(torch.ones(256, 256), requires_grad=False)
    assert signatures(engine.session)[0]["state"] == "unlearned" and "weights were replaced" in caplog.text
    engine.run()
    assert signatures(engine.session)[0]["state"] == "planned"


def test_a_capture_inside_an_update_sees_the_windows(engine):
    engine.run()
    with engine.session.update():
        with engine.session.resumed():
            engine.run()
        assert all(w["budget_bytes"] == 0 for w in signatures(engine.session)[0]["windows"])
    assert signatures(engine.session)[0]["num_eager"] == 2
    assert all(w["budget_bytes"] > 0 for w in signatures(engine.session)[0]["windows"])


def test_the_plan_is_logged_once(engine, caplog):
    caplog.set_level(logging.INFO)
    for _ in range(3):
        engine.run()
    lines = [r.getMessage() for r in caplog.records if "learned" in r.getMessage()]
    assert lines == ["dsv41_l2pf: learned tokens=4 mode=decode: 4 collectives, 3 windows, 0.75 MiB planned"]
