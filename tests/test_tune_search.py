"""The search of `tune` over made-up step times: what it finds, what it refuses, and that it decides alike every time."""

import statistics

import pytest

from dsv41_l2pf.tune_search import MIN_NOISE, NULL, OFF, Candidate, Search, judge, spread_of

MIB = 1 << 20
SIZES = [32 * MIB, 16 * MIB, 32 * MIB, 16 * MIB]
AUTOMATIC = tuple((size, "auto") for size in SIZES)
GROUPS = [[0, 2], [1, 3]]


class Device:
    """Step times in us by a formula of the settings; every other round is 5 % slower, as drift is."""

    def __init__(self, step_us, jitter=0.0):
        self.step_us, self.jitter, self.turns, self.asked = step_us, jitter, 0, []

    def measure(self, candidates, rounds):
        self.asked.append([candidate.name for candidate in candidates])
        times = [[0.0] * rounds for _ in candidates]
        for round_index in range(rounds):
            for i, candidate in enumerate(candidates):
                self.turns += 1
                noise = self.jitter * ((self.turns * 7919) % 13 - 6) / 6
                drift = 1.05 if round_index % 2 else 1.0
                times[i][round_index] = self.step_us(candidate) * drift * (1 + noise)
        return times


def search(device, **changes):
    options = dict(window_bytes=SIZES, largest_window_bytes=max(SIZES), automatic=AUTOMATIC, groups=GROUPS, rounds=4)
    options["forms"] = ["bulk", "load"]
    return Search(device.measure, **{**options, **changes}).run()


def saves(gain):
    """A step of 1000 us less `gain` of each window's setting."""
    return lambda candidate: 1000.0 - sum(gain(i, *setting) for i, setting in enumerate(candidate.settings))


def test_the_best_budget_is_found():
    outcome = search(Device(saves(lambda i, budget, form: 20 - abs(budget - 12 * MIB) / MIB if budget else 0)))
    assert outcome.settings == ((12 * MIB, "auto"),) * 4
    assert outcome.ratio == pytest.approx(0.92)
    assert outcome.reason.startswith("on by tune: ")


def test_the_best_form_is_found():
    outcome = search(Device(saves(lambda i, budget, form: {"bulk": 30, "load": 20}.get(form, 10) if budget else 0)))
    assert {form for _, form in outcome.settings} == {"bulk"}
    assert outcome.ratio == pytest.approx(0.88)


def test_a_group_of_windows_that_slows_is_dropped():
    outcome = search(Device(saves(lambda i, budget, form: 0 if not budget else (-20 if i in GROUPS[1] else 40))))
    assert [budget > 0 for budget, _ in outcome.settings] == [True, False, True, False]
    assert outcome.ratio == pytest.approx(0.92)


def test_many_groups_are_split_and_only_the_slow_one_goes():
    groups = [[i] for i in range(8)]
    gain = saves(lambda i, budget, form: 0 if not budget else (-30 if i == 5 else 20))
    outcome = search(Device(gain), window_bytes=[MIB] * 8, automatic=((MIB, "auto"),) * 8, groups=groups)
    assert [i for i, (budget, _) in enumerate(outcome.settings) if budget == 0] == [5]


@pytest.mark.parametrize("gain", [0.0, -5.0])
def test_what_does_not_help_ends_with_everything_off(gain):
    outcome = search(Device(saves(lambda i, budget, form: gain if budget else 0)))
    assert all(budget == 0 for budget, _ in outcome.settings)
    assert outcome.ratio == 1.0
    assert outcome.reason.startswith("off by tune: ") and "noise" in outcome.reason


def test_a_gain_within_the_noise_does_not_count():
    jitter = 0.01
    outcome = search(Device(saves(lambda i, budget, form: 0.5 if budget else 0), jitter))
    assert all(budget == 0 for budget, _ in outcome.settings)
    assert outcome.noise > MIN_NOISE


def test_the_last_word_is_against_the_callers_own_step():
    """Windows help against empty nodes, but the empty nodes themselves cost more than that."""
    with_nodes = saves(lambda i, budget, form: 10 if budget else 0)
    device = Device(lambda candidate: 950.0 if candidate.uses_baseline else with_nodes(candidate))
    outcome = search(device, baseline=True)
    assert all(budget == 0 for budget, _ in outcome.settings)
    assert device.asked[-1][:2] == ["off, without windows", NULL]
    assert search(Device(with_nodes)).ratio == pytest.approx(0.96)


def test_without_the_same_groups_on_every_rank_nothing_is_dropped():
    device = Device(saves(lambda i, budget, form: 0 if not budget else (-20 if i in GROUPS[1] else 40)))
    outcome = search(device, groups=[])
    assert all(budget > 0 for budget, _ in outcome.settings)
    assert not any("without windows like" in name for names in device.asked for name in names)


def test_the_same_times_give_the_same_decision():
    gain = saves(lambda i, budget, form: (3 - i) * budget / MIB if form == "load" else 1)
    assert search(Device(gain, 0.002)) == search(Device(gain, 0.002))


def test_drift_between_rounds_cancels():
    off = Candidate(OFF, ((0, "auto"),))
    on = Candidate("on", ((MIB, "auto"),))
    found = judge(Device(lambda candidate: 900.0 if candidate is on else 1000.0).measure, off, [on], 5)
    assert found.ratios[on] == pytest.approx(0.9)
    assert found.noise == MIN_NOISE


@pytest.mark.parametrize(
    "ratios, expected",
    [([1.0, 1.0, 1.0], MIN_NOISE), ([1.01, 1.01, 1.01], 0.01), ([0.98, 1.0, 1.02], 0.01), ([1.004], 0.004)],
)
def test_noise_is_what_off_strays_from_itself(ratios, expected):
    assert spread_of(ratios) == pytest.approx(expected)
    assert statistics.median(ratios) == pytest.approx(1, abs=expected + 1e-9)
