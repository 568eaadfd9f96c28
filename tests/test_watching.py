"""Watching: eager forwards on a GPU are watched only while that pays. The GPU is pretended, the clock is played."""

import pytest
import torch
from three_linears import Model, X

from dsv41_l2pf import Config, attach
from dsv41_l2pf.watching import NUM_LEARNING, NUM_TURNS, NUM_UNSEEN, Watching
from dsv41_l2pf.weights import WeightMap

NUM_UNDECIDED = NUM_LEARNING + 2 * NUM_TURNS


class Steps:
    """Steps of a caller: each takes its time, by whether its forward is watched."""

    def __init__(self, watched_s: float, unwatched_s: float) -> None:
        self.now_s = 0.0
        self.took_s = {True: watched_s, False: unwatched_s}
        self.changed = {False: False, True: False}  # some weights, any weight
        self.looks: list[bool] = []
        self.watching = Watching(lambda: self.now_s)

    def weights_changed(self, all: bool) -> bool:
        self.looks.append(all)
        return self.changed[all]

    def run(self, num_steps: int, pause_s: float = 0.0) -> list[bool]:
        seen = []
        for _ in range(num_steps):
            seen.append(self.watching.begins(self.weights_changed))
            self.now_s += self.took_s[seen[-1]] + pause_s
        return seen


def test_the_first_forwards_are_watched_and_then_as_many_with_as_without():
    seen = Steps(2.0, 1.0).run(NUM_UNDECIDED)
    assert seen[:NUM_LEARNING] == [True] * NUM_LEARNING
    assert seen[NUM_LEARNING:].count(True) == seen[NUM_LEARNING:].count(False) == NUM_TURNS


def test_forwards_are_watched_no_more_where_that_is_slower():
    steps = Steps(2.4, 1.0)
    steps.run(NUM_UNDECIDED)
    assert not steps.watching.is_over
    assert steps.run(100) == [False] * 100
    assert steps.watching.is_over and steps.watching.ratio == pytest.approx(2.4)


def test_nor_where_it_makes_no_difference():
    assert Steps(1.0, 1.0).run(NUM_UNDECIDED + 5)[NUM_UNDECIDED:] == [False] * 5


def test_forwards_stay_watched_where_windows_make_them_faster():
    steps = Steps(0.9, 1.0)
    assert steps.run(NUM_UNDECIDED + 100)[NUM_UNDECIDED:] == [True] * 100
    assert not steps.watching.is_over and steps.looks == []


def test_a_server_that_idles_now_and_then_does_not_change_what_is_decided():
    for watched_s, goes_on in ((0.9, True), (1.1, False)):
        steps = Steps(watched_s, 1.0)
        for i in range(NUM_UNDECIDED):
            steps.run(1, pause_s=50.0 if i % 5 == 0 else 0.0)
        assert steps.run(1) == [goes_on]


def test_unwatched_forwards_look_at_some_weights_and_now_and_then_at_all():
    steps = Steps(2.0, 1.0)
    steps.run(NUM_UNDECIDED + 1)
    steps.looks.clear()
    steps.run(10 * NUM_UNSEEN)
    assert steps.looks.count(True) == 10 and steps.looks.count(False) == 10 * (NUM_UNSEEN - 1)


@pytest.mark.parametrize(("all", "within"), [(False, 2), (True, NUM_UNSEEN)])
def test_changed_weights_begin_a_new_trial(all, within):
    steps = Steps(2.0, 1.0)
    steps.run(NUM_UNDECIDED + 3)
    steps.changed[all] = True
    assert True in steps.run(within)
    steps.changed[all] = False
    assert steps.watching.ratio is None
    steps.run(NUM_UNDECIDED)
    assert steps.run(3) == [False] * 3


# In the hook


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def prefetcher(model, monkeypatch):
    monkeypatch.setattr(WeightMap, "on_gpu", True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    prefetcher = attach(model, Config())
    yield prefetcher
    prefetcher.detach()


def decide(prefetcher, model, ratio):
    """Runs a forward, and the rest of the trial as if it had gone so."""
    model(X)
    (watching,) = prefetcher._attachment.watching.values()
    watching.ratio = ratio


def num_eager(prefetcher):
    (signature,) = prefetcher.status()["signatures"]
    return signature["num_eager"]


def test_an_unwatched_forward_is_the_models_own(model, prefetcher):
    decide(prefetcher, model, 2.43)
    expected = Model.forward(model, X)
    assert all(torch.equal(model(X), expected) for _ in range(5))
    assert num_eager(prefetcher) == 1
    assert prefetcher.status()["unwatched"] == {len(X): 2.43}
    said = f"eager forwards of {len(X)} tokens run without windows: watching them took 2.43 of the time without"
    assert said in " ".join(str(prefetcher.report()).split())


def test_a_trial_by_the_real_clock_ends(model, prefetcher):
    for _ in range(NUM_UNDECIDED + 1):
        model(X)
    (watching,) = prefetcher._attachment.watching.values()
    assert watching.ratio > 0


def test_every_number_of_tokens_is_tried_by_itself(model, prefetcher):
    decide(prefetcher, model, 2.0)
    model(X[:1]), model(X[:1])
    tokens = {entry["num_tokens"]: entry["num_eager"] for entry in prefetcher.status()["signatures"]}
    assert tokens == {len(X): 1, 1: 2}


def test_a_capture_is_watched(model, prefetcher, monkeypatch):
    decide(prefetcher, model, 2.0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert prefetcher._attachment.watches(len(X))


def test_who_times_the_windows_gets_them(model, prefetcher):
    model(X), decide(prefetcher, model, 2.0)
    before = num_eager(prefetcher)
    prefetcher.tune(lambda: model(X), rounds=2, progress=False)
    assert num_eager(prefetcher) > before
    assert not prefetcher.is_measuring


def test_invalidate_begins_anew(model, prefetcher):
    decide(prefetcher, model, 2.0)
    prefetcher.invalidate()
    assert prefetcher.status()["unwatched"] == {}
    model(X)
    assert num_eager(prefetcher) == 1


def test_the_next_forward_notices_that_all_weights_were_replaced(model, prefetcher):
    decide(prefetcher, model, 2.0)
    for weight in model.parameters():
        weight.data = weight.data.clone()
    model(X)
    assert num_eager(prefetcher) == 2


def test_one_replaced_weight_of_many_is_noticed_in_time(monkeypatch):
    monkeypatch.setattr(WeightMap, "on_gpu", True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    model = torch.nn.Sequential(*(Model() for _ in range(30)))
    prefetcher = attach(model, Config())
    decide(prefetcher, model, 2.0)
    model[7].b.weight.data = model[7].b.weight.data.clone()
    for _ in range(NUM_UNSEEN + 1):
        model(X)
    assert num_eager(prefetcher) > 1
    prefetcher.detach()


def test_on_a_cpu_every_forward_is_watched(model):
    prefetcher = attach(model, Config())
    for _ in range(NUM_UNDECIDED + 5):
        model(X)
    assert num_eager(prefetcher) == NUM_UNDECIDED + 5
    prefetcher.detach()
