"""Tuning by a server's own steps, over made-up step times: whose turn it is, what it decides, and when it gives up."""

import pytest
from three_linears import Model, X, signature

import dsv41_l2pf as l2pf
from dsv41_l2pf import Config
from dsv41_l2pf.live_tuning import NUM_ROUNDS, STEPS_A_TURN, STEPS_BEHIND, LiveTuning

WHOLE = 16384  # a window of these linears
OFF_US = 1000.0


class Server:
    """Runs steps that take `step_us(setting)`, the first window's (budget, form), or None in the graph without windows."""

    def __init__(self, prefetcher, step_us):
        self.prefetcher, self.step_us, self.ran = prefetcher, step_us, []
        server = self

        class Span:
            def end(self):
                self.taken_us = server.now_us

            def us(self):
                return self.taken_us

        self.tuning = LiveTuning(prefetcher, signature(prefetcher), span=Span)

    def step(self):
        setting = None
        if self.tuning.begin():
            window = signature(self.prefetcher)["windows"][0]
            setting = (window["budget_bytes"], window["form"])
        drift = 1.05 if len(self.ran) // 200 % 2 else 1.0
        self.now_us = self.step_us(setting) * drift
        self.ran.append(setting)
        self.tuning.end()

    def serve(self):
        while not self.tuning.is_over:
            self.step()
        return self.tuning.outcome


@pytest.fixture
def prefetcher():
    model = Model()
    prefetcher = l2pf.attach(model, Config())
    model(X), model(X)
    prefetcher.the_model = model
    return prefetcher


def saves(gain):
    return lambda setting: OFF_US if setting is None else OFF_US - gain(*setting)


@pytest.mark.parametrize(
    ("gain", "budget_bytes", "name"),
    [
        (lambda budget, form: 80 * budget / WHOLE, WHOLE, "automatic"),
        (lambda budget, form: 80 if budget == WHOLE // 2 else 20, WHOLE // 2, "half of the automatic budget"),
        (lambda budget, form: 80 if budget == WHOLE // 4 else 20, WHOLE // 4, "a quarter of the automatic budget"),
    ],
)
def test_the_best_budget_stays(prefetcher, gain, budget_bytes, name):
    server = Server(prefetcher, saves(gain))
    outcome = server.serve()
    assert outcome.reason == f"on by tune: the best settings ({name}) took 0.9200 of off, noise 0.0005"
    assert [window.budget_bytes for window in outcome.windows] == [budget_bytes] * 2
    assert [window["budget_bytes"] for window in signature(prefetcher)["windows"]] == [budget_bytes] * 2
    assert signature(prefetcher)["tuned"]["ratio"] == pytest.approx(0.92)
    server.step()
    assert server.ran[-1] == (budget_bytes, "auto")


def test_the_best_form_stays(prefetcher):
    outcome = Server(prefetcher, saves(lambda budget, form: 60 if form == "lines" else 40)).serve()
    assert {window.form for window in outcome.windows} == {"lines"}
    assert outcome.ratio == pytest.approx(0.94)


def test_where_windows_do_not_pay_the_graph_without_them_stays(prefetcher):
    """Even nodes that prefetch nothing may cost: here every step in the graph with windows is 2 % longer."""
    server = Server(prefetcher, saves(lambda budget, form: -20))
    outcome = server.serve()
    assert outcome.is_off and outcome.reason.startswith("off by tune: the best settings (automatic) took 1.0200 of off")
    assert [window["budget_bytes"] for window in signature(prefetcher)["windows"]] == [0, 0]
    assert signature(prefetcher)["reason"] == outcome.reason
    for _ in range(3):
        server.step()
    assert server.ran[-3:] == [None] * 3


def test_a_gain_within_the_noise_is_none(prefetcher):
    steps = iter(range(10**6))
    jitter = lambda: (next(steps) * 7919 % 13 - 6) / 100  # noqa: E731  6 % to either side
    outcome = Server(prefetcher, lambda setting: (OFF_US if setting is None else 0.998 * OFF_US) + OFF_US * jitter()).serve()
    assert outcome.is_off


def test_ranks_that_replay_in_step_have_their_turns_together(prefetcher):
    """Which graph runs when depends on the number of steps alone, whatever they take."""
    num_forms = len(l2pf.status()["devices"][0]["forms"])
    server = Server(prefetcher, saves(lambda budget, form: 80))
    server.serve()
    arms = (2 + 3, 2 + 1 + num_forms, 2 + 1)  # off twice; budgets, forms, the last word
    steps_of = [NUM_ROUNDS * num_arms * (1 + STEPS_A_TURN) + STEPS_BEHIND + 1 for num_arms in arms]
    assert len(server.ran) == sum(steps_of)
    # Off, off again, then the first budget.
    turn = 1 + STEPS_A_TURN
    assert server.ran[: 3 * turn] == [None] * 2 * turn + [(WHOLE, "auto")] * turn
    # And the other way round: what came last comes first.
    assert server.ran[5 * turn : 6 * turn] == [(WHOLE // 4, "auto")] * turn


def test_a_plan_that_is_dropped_meanwhile_ends_it_without_windows(prefetcher):
    server = Server(prefetcher, saves(lambda budget, form: 80))
    for _ in range(20):
        server.step()
    prefetcher.invalidate()
    assert server.serve() is None
    assert server.tuning.problem.startswith("expected a signature with a plan, got model ")
    server.step()
    assert server.ran[-1] is None


def test_a_step_that_raises_ends_it_without_windows(prefetcher):
    class Unfinished(RuntimeError):
        pass

    class Span:
        def end(self):
            self.ended = True

        def us(self):
            if not hasattr(self, "ended"):
                raise Unfinished
            return OFF_US

    tuning = LiveTuning(prefetcher, signature(prefetcher), span=Span)
    for i in range(10**4):
        tuning.begin()
        if i != 7:  # the engine raised, and goes on with another batch
            tuning.end()
        if tuning.is_over:
            break
    assert tuning.outcome is None and tuning.problem == "Unfinished"
    assert tuning.begin() is False


def test_a_tuning_waits_for_its_signature_after_plans_were_dropped(prefetcher):
    Server(prefetcher, saves(lambda budget, form: 80 if budget == WHOLE // 2 else 20)).serve()
    prefetcher.invalidate()
    prefetcher.the_model(X), prefetcher.the_model(X)
    assert [window["budget_bytes"] for window in signature(prefetcher)["windows"]] == [WHOLE // 2] * 2
    assert signature(prefetcher)["tuned"]["ratio"] == pytest.approx(0.92)
