"""benchmarks.sglang_ratios: starts are compared with the off start of their own turn."""

import math

import pytest

from benchmarks.sglang_ratios import ratios, table


def start(name, us, delay_us=5.0, tokens="abc", **settings):
    """us: of a step; its graph takes half."""
    settings = {"as planned": us, **settings}
    return {"start": name, "delay_us": delay_us, "tokens": tokens, "tokens_equal_in_every_block": True,
            "step_us": {setting: [us, 9 * us, us] for setting, us in settings.items()},
            "graph_us": {setting: [us / 2, 9 * us, us / 2] for setting, us in settings.items()}}  # fmt: skip


def a_turn(off, on, null, **more):
    with_plugin = start("on", on, **more, **{"windows off": off * 1.01, "tuned": off * 0.8})
    return [start("off", off, **more), {**with_plugin, "signatures": [{"num_windows": 32}]},
            start("off again", null, **more)]  # fmt: skip


def test_each_turn_is_compared_with_its_own_off():
    # The machine is twice as fast in the second turn.
    found, graph = ratios(a_turn(2.0, 1.8, 2.02) + a_turn(1.0, 0.9, 0.99) + a_turn(2.0, 1.9, 2.0))
    assert (found.quantity, graph.quantity) == ("step_us", "graph_us")
    assert (found.off_us, graph.off_us) == (2.0, 1.0)
    for each in (found, graph):
        assert (each.on, each.null) == (pytest.approx(0.9), pytest.approx(1.0))
        assert each.null_spread == pytest.approx(0.01)
        assert (each.tuned, each.windows_off) == (pytest.approx(0.8), pytest.approx(1.01))
        assert (each.num_windows, each.tokens_equal) == (32, True)


def test_delays_are_apart():
    found = ratios(a_turn(1.0, 0.9, 1.0) + a_turn(1.0, 0.8, 1.0, delay_us=15.0))
    assert [(r.delay_us, r.on) for r in found[::2]] == [(5.0, 0.9), (15.0, 0.8)]
    assert table(found).row_count == 4


def test_other_tokens_of_one_start_are_seen():
    starts = a_turn(1.0, 0.9, 1.0)
    starts[1]["tokens"] = "other"
    assert not ratios(starts)[0].tokens_equal


def test_a_start_that_tuned_while_serving_is_compared_too():
    found = ratios(a_turn(2.0, 1.8, 2.0) + [start("tuned while serving", 1.7)])[0]
    assert found.served == pytest.approx(0.85)
    assert math.isnan(ratios(a_turn(2.0, 1.8, 2.0))[0].served)


def test_without_windows_there_is_no_ratio_for_them():
    starts = a_turn(1.0, 0.9, 1.0)
    starts[1] = start("on", 0.9)
    found = ratios(starts)[0]
    assert math.isnan(found.windows_off) and math.isnan(found.tuned) and found.num_windows == 0


def test_a_start_that_is_missing_is_named():
    with pytest.raises(ValueError, match=r"5.0 us: expected as many starts of each kind, got {'off': 1, 'on': 1, 'off again': 0}"):
        ratios(a_turn(1.0, 0.9, 1.0)[:2])
