"""The paper model: what a window saves on a GPU that is not here, from its public rates."""

import pytest

from dsv41_l2pf.config import MIB
from dsv41_l2pf.predict import GPUS, WINDOWS_US, Rates, prediction_table, predictions


def test_the_paper_model_gives_the_saving_that_the_rates_allow():
    h200 = Rates(3890, 9700, 3890, 60 * MIB)
    assert h200.saved_us(20_000_000, 100.0) == pytest.approx(3.08 - 0.1, abs=0.01)  # limited by the weights
    gb10 = Rates(236, 1020, 236, 60 * MIB)
    assert gb10.saved_us(1 << 30, 20.0) == pytest.approx(20 * (1 - 236 / 1020) - 0.1)  # by the window
    small = Rates(236, 1020, 236, 1 * MIB)
    assert small.prefetched_bytes(1 << 30, 1000.0) == MIB  # by L2
    assert gb10.saved_us(0, 20.0) == pytest.approx(-0.1)  # an empty node costs


def test_the_ceilings_are_those_of_the_evidence():
    ceiling = {gpu.name: [1 - rates.cold_gbps / rates.hot_gbps for rates in (gpu.low, gpu.high)] for gpu in GPUS}
    assert ceiling["GB10"][1] == pytest.approx(0.77, abs=0.005)
    assert ceiling["RTX PRO 6000"] == pytest.approx([0.61, 0.72], abs=0.005)
    assert ceiling["H200"][0] == pytest.approx(0.60, abs=0.005)


def test_predictions_rise_with_the_window_and_low_is_below_high():
    for earlier, later in zip(WINDOWS_US, WINDOWS_US[1:]):
        for name, (low, high) in predictions(16 * MIB, later).items():
            assert low <= high
            assert predictions(16 * MIB, earlier)[name][0] <= low
    assert predictions(16 * MIB, 26.0)["GB10"][0] > 5 * predictions(16 * MIB, 26.0)["H200"][0]
    assert prediction_table().row_count == len(GPUS)


def test_rates_that_are_not_positive_are_refused():
    with pytest.raises(ValueError, match="fill_gbps: expected a number > 0, got 0"):
        Rates(236, 1020, 0, MIB)
