"""What `gap` measures without a GEMM: the fill rate of each form, and what prefetching does to the collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import dsv41_l2pf

from . import native
from .arms import Hooks, Ours
from .common import Goal, console, number, row_table
from .models import MIB, random_bytes
from .timing import NULL, OFF, Captured, Timed, capture, median_difference, row, time_in_turns

_NUM_WINDOWS = 24
# The slope between these two sizes is free of what a launch costs.
_SMALL_BYTES, _LARGE_BYTES = 16 * MIB, 48 * MIB
_COLLECTIVE_DELAY_US = 15.0
_COLLECTIVE_CTAS = (4, 8)
# Keeps a prefetch running for most of the window, and ends inside it.
_COLLECTIVE_BUDGET_BYTES = 24 * MIB
_NUM_TOKENS = 1


def _windows_step(
    hooks: Hooks, weights: list[torch.Tensor], data: torch.Tensor, delay_us: float, num_ctas: int
) -> Callable[[], list[torch.Tensor]]:
    """Collectives with a window each, and nothing that reads the weights."""

    def run() -> list[torch.Tensor]:
        with hooks.forward():
            for weight in weights:
                with hooks.collective(data, "all_reduce"):
                    torch.ops.dsv41.emulated_all_reduce(data, delay_us, num_ctas)
                hooks.record_weight(weight)
        return [data]

    return run


def _reads(weights: list[torch.Tensor], num_bytes: int) -> Captured:
    def run() -> list[torch.Tensor]:
        for weight in weights:
            native.read(weight.data_ptr(), num_bytes)
        return []

    return capture(run)


def _gbps(times: dict[str, list[float]], large: str, small: str) -> float:
    us_a_window = median_difference(times, large, small) / _NUM_WINDOWS
    return (_LARGE_BYTES - _SMALL_BYTES) / us_a_window / 1e3


def _fill(weights: list[torch.Tensor], data: torch.Tensor, num_rounds: int) -> list[dict[str, Any]]:
    """GB/s of the DRAM read and of each form, from windows whose prefetches follow one another without a pause."""
    ours = Ours(_NUM_TOKENS)
    # The collectives answer at once, so the chained prefetches are what a replay waits for.
    graph = capture(_windows_step(ours, weights, data, 0.0, 4))
    small, large = _reads(weights, _SMALL_BYTES), _reads(weights, _LARGE_BYTES)
    arms = [Timed("read small", small.replay), Timed("read large", large.replay)]
    (device,) = [entry for entry in dsv41_l2pf.status()["devices"] if entry["device"].startswith("cuda")]
    forms = ["auto", *device["forms"]]
    for form in forms:
        for size, num_bytes in (("small", _SMALL_BYTES), ("large", _LARGE_BYTES)):
            prepare = lambda num_bytes=num_bytes, form=form: ours.set_all(num_bytes, form)  # noqa: E731
            arms.append(Timed(f"{form} {size}", graph.replay, prepare))
    times = time_in_turns(arms, num_rounds)
    read_gbps = _gbps(times, "read large", "read small")
    case = "fill rate"
    rows = [{"case": case, "arm": OFF, "value": read_gbps, "unit": "GB/s", "ratio_to_off": 1.0, "what": "DRAM read"}]
    for form in forms:
        gbps = _gbps(times, f"{form} large", f"{form} small")
        arm = f"ours_{form}"
        rows.append({"case": case, "arm": arm, "value": gbps, "unit": "GB/s", "ratio_to_off": gbps / read_gbps})
    return rows


def _collective(
    weights: list[torch.Tensor], data: torch.Tensor, num_ctas: int, num_rounds: int
) -> list[dict[str, Any]]:
    """The collective's own latency, with nothing else in the step but the prefetches beside it."""
    delay_us = _COLLECTIVE_DELAY_US
    off, null = (capture(_windows_step(Hooks(), weights, data, delay_us, num_ctas)) for _ in range(2))
    ours = Ours(_NUM_TOKENS)
    graph = capture(_windows_step(ours, weights, data, delay_us, num_ctas))
    arms = [
        Timed(OFF, off.replay),
        Timed(NULL, null.replay),
        Timed("empty", graph.replay, lambda: ours.set_all(0)),
        Timed("ours_auto", graph.replay, lambda: ours.set_all(_COLLECTIVE_BUDGET_BYTES, "auto")),
    ]
    times = time_in_turns(arms, num_rounds)
    case = f"collective of {num_ctas} CTAs, {delay_us:g} us"
    rows = [row(case, arm, times, unit="us a collective") for arm in arms]
    for entry in rows:
        entry["value"] /= _NUM_WINDOWS
    return rows


def measure(num_rounds: int, calibration: dict[str, Any]) -> tuple[list[dict[str, Any]], list[Goal]]:
    """The rows and the goals. calibration: what the library measured for itself, to be compared."""
    weights = [random_bytes(_LARGE_BYTES) for _ in range(_NUM_WINDOWS)]
    data = torch.ones(16384, device="cuda")
    rows = _fill(weights, data, num_rounds)
    fill = next(entry["ratio_to_off"] for entry in rows if entry["arm"] == "ours_auto")
    goals = [Goal("fill rate of the DRAM read rate, ours_auto", fill, 0.9, at_most=False)]
    for num_ctas in _COLLECTIVE_CTAS:
        found = _collective(weights, data, num_ctas, num_rounds)
        ratio = next(entry["ratio_to_off"] for entry in found if entry["arm"] == "ours_auto")
        goals.append(Goal(f"latency of a collective of {num_ctas} CTAs with prefetch running, of without", ratio, 1.01))
        rows += found
    shown = {"case": "", "arm": "", "value": ".2f", "unit": "", "ratio_to_off": ".3f"}
    console.print(row_table("fill rate, and the collective's own latency", rows, shown))
    console.print(f"the library's own calibration: DRAM read {number(calibration.get('dram_read_gbps'), '.0f')} GB/s")
    return rows, goals
