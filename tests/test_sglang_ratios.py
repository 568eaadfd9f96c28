"""benchmarks.sglang_ratios: starts are compared with the off start of their own turn."""

import math

import pytest

from benchmarks.sglang_ratios import ratios, table


def start(name, ms, delay_us=5.0, tokens="abc", **more):
    return {"start": name, "delay_us": delay_us, "ms": [ms, 9 * ms, ms], "windows_off_ms": [], "tuned_ms": [], "tokens": tokens,
            "tokens_equal_in_every_block": True, **more}  # fmt: skip


def a_turn(off, on, null, **more):
    with_plugin = {"signatures": [{"num_windows": 32}], "windows_off_ms": [off * 1.01], "tuned_ms": [off * 0.8]}
    return [start("off", off, **more), {**start("on", on, **more), **with_plugin}, start("off again", null, **more)]


def test_each_turn_is_compared_with_its_own_off():
    # The machine is twice as fast in the second turn.
    (found,) = ratios(a_turn(2.0, 1.8, 2.02) + a_turn(1.0, 0.9, 0.99) + a_turn(2.0, 1.9, 2.0))
    assert (found.off_ms, found.on, found.null) == (2.0, pytest.approx(0.9), pytest.approx(1.0))
    assert found.null_spread == pytest.approx(0.01)
    assert (found.tuned, found.windows_off) == (pytest.approx(0.8), pytest.approx(1.01))
    assert (found.num_windows, found.tokens_equal) == (32, True)


def test_delays_are_apart():
    found = ratios(a_turn(1.0, 0.9, 1.0) + a_turn(1.0, 0.8, 1.0, delay_us=15.0))
    assert [(r.delay_us, r.on) for r in found] == [(5.0, 0.9), (15.0, 0.8)]
    assert table(found).row_count == 2


def test_other_tokens_of_one_start_are_seen():
    starts = a_turn(1.0, 0.9, 1.0)
    starts[1]["tokens"] = "other"
    assert not ratios(starts)[0].tokens_equal


def test_without_windows_there_is_no_ratio_for_them():
    starts = a_turn(1.0, 0.9, 1.0)
    starts[1].update(windows_off_ms=[], tuned_ms=[], signatures=[])
    (found,) = ratios(starts)
    assert math.isnan(found.windows_off) and math.isnan(found.tuned) and found.num_windows == 0


def test_a_start_that_is_missing_is_named():
    with pytest.raises(ValueError, match=r"5.0 us: expected as many starts of each kind, got {'off': 1, 'on': 1, 'off again': 0}"):
        ratios(a_turn(1.0, 0.9, 1.0)[:2])
