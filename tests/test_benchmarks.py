"""What benchmarks/ makes of times: statistics, goals and the JSON."""

import json
import math

import pytest
from benchmark_documents import document
from benchmarks.common import Goal, geometric_mean, verdict
from benchmarks.models import MIB
from benchmarks.runs import rows_of
from benchmarks.timing import NULL, OFF, Timed, median_difference, null_spread, paired, quartiles, row

SCHEMA = ("benchmark", "gpu", "driver", "torch", "commit", "command", "null_spread", "rows")


def test_ratios_are_paired_by_round_so_that_drift_cancels():
    off = [100.0, 110.0, 120.0, 130.0]
    assert paired([time * 0.9 for time in off], off) == pytest.approx([0.9] * 4)


def test_the_null_spread_is_the_farther_quartile_of_null_over_off():
    times = {OFF: [100.0] * 5, NULL: [98.0, 99.0, 100.0, 103.0, 104.0]}
    assert quartiles(paired(times[NULL], times[OFF])) == pytest.approx((0.99, 1.0, 1.03))
    assert null_spread(times) == pytest.approx(0.03)


def test_a_row_holds_the_median_and_the_quartiles_of_the_ratio():
    times = {OFF: [100.0] * 5, "ours_auto": [88.0, 89.0, 90.0, 93.0, 94.0]}
    found = row("a case", Timed("ours_auto", lambda: None, notes={"num_windows": 3}), times, delay_us=5.0)
    assert (found["value"], found["unit"], found["num_windows"], found["delay_us"]) == (90.0, "us", 3, 5.0)
    assert [found[key] for key in ("ratio_low", "ratio_to_off", "ratio_high")] == pytest.approx([0.89, 0.9, 0.93])


def test_a_difference_is_the_median_of_differences():
    assert median_difference({"a": [10.0, 20.0, 90.0], "b": [9.0, 18.0, 10.0]}, "a", "b") == 2.0


def test_a_geometric_mean_of_something_that_is_not_positive_is_zero_and_of_nothing_is_no_number():
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([0.5, -0.1]) == 0.0
    assert math.isnan(geometric_mean([]))


def test_a_rival_is_judged_by_its_better_budget_and_the_ideal_by_its_best():
    arms = [
        Timed(OFF, lambda: None),
        Timed("seed 6 MiB", lambda: None, notes={"rival": "seed", "budget_bytes": 6 * MIB}),
        Timed("seed 32 MiB", lambda: None, notes={"rival": "seed", "budget_bytes": 32 * MIB}),
    ]
    times = {OFF: [100.0] * 4, "seed 6 MiB": [98.0] * 4, "seed 32 MiB": [97.0] * 4}
    for budget, real_us in ((16 * MIB, 111.0), (32 * MIB, 108.0)):
        for which, us in (("real", real_us), ("dummy", 120.0)):
            arms.append(Timed(f"{which} {budget / MIB:.2f} MiB", lambda: None, notes={"budget_bytes": budget}))
            times[arms[-1].name] = [us] * 4
    rows = {found["arm"]: found for found in rows_of("a case", arms, times, model="m")}
    assert set(rows) == {OFF, "seed", "ideal"}
    assert (rows["seed"]["ratio_to_off"], rows["seed"]["variant"]) == (0.97, "seed 32 MiB")
    assert rows["seed"]["variants"] == {"seed 6 MiB": 0.98, "seed 32 MiB": 0.97}
    assert rows["ideal"]["ratio_to_off"] == pytest.approx(0.88)  # 120 - 108 of 100
    assert (rows["ideal"]["value"], rows["ideal"]["budget_mib"], rows["ideal"]["model"]) == (88.0, 32.0, "m")


@pytest.mark.parametrize(
    ("measured", "at_most", "slack", "missed_by"),
    [(0.9, True, 0.0, 0.0), (0.95, True, 0.0, 0.03), (0.95, True, 0.05, 0.0), (0.9, False, 0.0, 0.02)],
)
def test_a_goal_says_by_how_much_it_is_missed(measured, at_most, slack, missed_by):
    goal = Goal("step", measured, 0.92, at_most, slack)
    assert goal.missed_by == pytest.approx(missed_by)
    assert goal.record()["met"] is (missed_by == 0)


def test_a_goal_without_a_measurement_is_not_met():
    record = Goal("step", math.nan, 0.92).record()
    assert record["met"] is False
    assert verdict(record) == "not measured"


def test_the_json_has_the_agreed_keys_and_the_largest_null_spread(tmp_path):
    path = document().write(tmp_path / "results")
    found = json.loads(path.read_text())
    assert path.name == "decode.json"
    assert tuple(found)[: len(SCHEMA)] == SCHEMA
    assert found["null_spread"] == 0.003
    assert {"case", "arm", "value", "unit", "ratio_to_off"} <= set(found["rows"][0])
    assert [goal["met"] for goal in found["goals"]] == [True, False]
    assert [child.name for child in path.parent.iterdir()] == ["decode.json"]


def test_the_json_has_null_where_there_is_no_number(tmp_path):
    path = document(goals=[Goal("step", math.nan, 0.92)], null_spreads=[]).write(tmp_path)
    found = json.loads(path.read_text())
    assert found["null_spread"] is None
    assert found["goals"][0]["measured"] is None


def test_a_case_that_fails_is_named_and_takes_no_other_along():
    made = document()
    with made.case("bad"):
        raise RuntimeError("2 of 3 outputs differ from off\nand more")
    with made.case("good"):
        pass
    assert made.failed == {"bad": "2 of 3 outputs differ from off"}
