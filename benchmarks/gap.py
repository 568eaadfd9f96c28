"""How much of a GEMM's cold-to-hot gap a prefetch closes, by form of ours and by geometry of each rival.

A step is `[collective, GEMM]` many times over, each GEMM with weights of its own, more than twice L2 in all, so that
without a prefetch every GEMM is cold. Two kinds of hot:
  hot    the same GEMM on one weight all the time
  ideal  the weight read by the whole GPU right before the GEMM, less the same read of other bytes
A share is the saving over the larger of the two gaps, so that no arm looks better for a small one.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch
from rich.progress import track

import dsv41_l2pf
from dsv41_l2pf.tune import DEFAULT_ROUNDS

from . import gap_probes
from .arms import RIVALS, Ours, calibration
from .common import (
    Document,
    Goal,
    console,
    environment,
    finish,
    geometric_mean,
    introduce,
    parser,
    require_cuda,
    row_table,
)
from .models import MIB, Collective, Linear, Shape, Slice, random_bytes
from .runs import AUTO, EMPTY, IDEAL, TUNED, Run
from .timing import OFF, Captured, Timed, median_difference, null_spread, time_in_turns

# EVIDENCE 3: tokens, K, N, FP8 or bf16.
GEMMS = (
    (16, 7168, 2112, True),
    (16, 1536, 6144, True),
    (16, 7168, 4096, True),
    (8, 7168, 2112, False),
    (1, 7168, 256, False),
)
DELAYS_US = (5.0, 10.0, 20.0, 30.0, 50.0)
GOAL_DELAY_US = 30.0
HOT = "hot"
_MIN_LAYERS = 24
_CACHE_STATE = (
    "off is cold: the weights of one step are more than twice L2; all arms have the same collectives; "
    "hot repeats one weight, ideal reads the weight right before the GEMM"
)


def shape_of(k: int, n: int, fp8: bool, l2_bytes: int) -> Shape:
    linear = Linear("weight", k, n, fp8)
    num_layers = max(_MIN_LAYERS, math.ceil(2.2 * l2_bytes / linear.num_bytes))
    return Shape(f"{'fp8' if fp8 else 'bf16'} {k}x{n}", (Collective("all_reduce"), linear), num_layers)


def form_arms(ours: Ours, replay: Callable[[], None], weight_bytes: int) -> list[Timed]:
    """The graph of `ours` with every window set: off, each form with the whole weight, and back to auto."""

    def arm(name: str, budget_bytes: int, form: str) -> Timed:
        return Timed(name, replay, lambda: ours.set_all(budget_bytes, form))

    (device,) = [entry for entry in dsv41_l2pf.status()["devices"] if entry["device"].startswith("cuda")]
    forms = [arm(f"ours_{form}", weight_bytes, form) for form in device["forms"]]
    return [arm(EMPTY, 0, ""), *forms, arm(AUTO, -1, "auto")]


def measure(
    run: Run, hot: Slice, instead: torch.Tensor, args: argparse.Namespace, tune: bool
) -> tuple[list[dict], dict[str, list[float]]]:
    """The rows of one GEMM behind one window length, and the times they come from."""
    num_windows, weight_bytes = run.weights.shape.num_windows, run.weights.shape.layer[1].num_bytes
    repeated = Captured(run.off.graph, [run.off.outputs[0]] * num_windows + [run.off.outputs[-1]], run.off.step)
    run.add(HOT, run.capture_of(hot), reference=repeated)
    run.add_ideal([weight_bytes], instead)
    run.add_rivals()
    ours = run.add_ours(args.tune_rounds, with_tuned=tune)
    auto = next(arm for arm in run.arms if arm.name == AUTO)
    run.arms.remove(auto)
    arms = form_arms(ours, auto.replay, weight_bytes)
    arms[-1].notes = auto.notes
    run.arms += arms
    times = time_in_turns(run.arms, args.rounds)
    return rows_of(run, times), times


def rows_of(run: Run, times: dict[str, list[float]]) -> list[dict]:
    num_windows, gemm = run.weights.shape.num_windows, run.weights.shape.name
    weight_bytes = run.weights.shape.layer[1].num_bytes
    rows = run.rows(times, gemm=f"{gemm} M{run.num_tokens}", delay_us=run.delay_us, weight_bytes=weight_bytes)
    off_us = next(row["value"] for row in rows if row["arm"] == OFF)
    ideal_us = next(row["value"] for row in rows if row["arm"] == IDEAL)
    hot_gap_us = median_difference(times, OFF, HOT)
    gap_us = max(hot_gap_us, off_us - ideal_us)
    for row in rows:
        name = row.get("variant", row["arm"])
        saved_us = median_difference(times, OFF, name) if name in times else off_us - row["value"]
        row |= {
            "value": row["value"] / num_windows,
            "unit": "us a window",
            "saved_us": saved_us / num_windows,
            "share": saved_us / gap_us,
            "share_of_hot": saved_us / hot_gap_us,
            "share_of_ideal": saved_us / (off_us - ideal_us),
        }
    return rows


def shares(rows: list[dict], arm: str, delay_us: float = GOAL_DELAY_US) -> list[float]:
    return [row["share"] for row in rows if row["arm"] == arm and row.get("delay_us") == delay_us]


def goals_of(rows: list[dict], nulls_us: list[float]) -> list[Goal]:
    window = f"{GOAL_DELAY_US:.0f} us window"
    text = f"share of the gap closed, {window}, geometric mean"
    goals = [
        Goal(f"{text}, {arm}", geometric_mean(shares(rows, arm)), 0.80, at_most=False) for arm in (AUTO, TUNED)
    ]
    empties = [row["saved_us"] for row in rows if row["arm"] == EMPTY and "share" in row]
    if empties:
        cost_us = -sorted(empties)[len(empties) // 2]
        goals.append(Goal("an empty node, us a window (median of all cases)", cost_us, 0.1))
    for rival in RIVALS:
        excesses = [_saved(rows, case, (rival,)) - _saved(rows, case, (AUTO, TUNED)) for case in _cases(rows)]
        excess = max(excesses, default=math.nan)
        text = f"us a window that {rival} saves more than ours, worst case"
        goals.append(Goal(text, excess, 0.0, slack=max(nulls_us, default=0)))
    return goals


def _saved(rows: list[dict], case: str, arms: tuple[str, ...]) -> float:
    return max(row["saved_us"] for row in rows if row["arm"] in arms and row["case"] == case)


def _cases(rows: list[dict]) -> list[str]:
    return list(dict.fromkeys(row["case"] for row in rows if "share" in row))


def arguments() -> argparse.Namespace:
    found = parser("gap", __doc__.splitlines()[0])
    found.add_argument("--delays", type=float, nargs="+", default=DELAYS_US, help="peer delays in us")
    found.add_argument("--rounds", type=int, default=12, help="rounds in which every arm has its turn")
    found.add_argument("--tune-rounds", type=int, default=DEFAULT_ROUNDS, help="rounds of tune")
    found.add_argument("--tune-all", action="store_true", help=f"tune at every delay, not {GOAL_DELAY_US:g} us alone")
    args = found.parse_args()
    if args.quick:
        args.delays, args.rounds = [GOAL_DELAY_US], 4
    return args


def main() -> int:
    args = arguments()
    require_cuda()
    document = Document("gap", environment(args.commit))
    introduce("gap", document.record, _CACHE_STATE)
    measured = document.extra["calibration"] = calibration()
    nulls_us = measure_gemms(document, args)
    document.goals += goals_of(document.rows, nulls_us)
    with document.case("fill rate and collective"):
        rows, goals = gap_probes.measure(args.rounds, measured)
        document.rows += rows
        document.goals += goals
    return finish(document, args)


def measure_gemms(document: Document, args: argparse.Namespace) -> list[float]:
    """Adds the rows of every GEMM and window length; returns the null spread of each case in us a window."""
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    instead = random_bytes(512 * MIB)
    nulls_us = []
    for m, k, n, fp8 in track(GEMMS, description="five GEMMs", console=console):
        shape = shape_of(k, n, fp8, l2_bytes)
        weights, hot = Slice(shape), Slice(shape, one_weight=True)
        # The delay with the goal first, so that a deadline does not cost it.
        for delay_us in sorted(args.delays, key=lambda delay_us: delay_us != GOAL_DELAY_US):
            name = f"{shape.name} M{m}, {delay_us:g} us"
            if delay_us != GOAL_DELAY_US and document.elapsed_s > args.deadline_s:
                document.skipped.append(name)
                continue
            with document.case(name):
                run = Run(name, weights, m, delay_us)
                rows, times = measure(run, hot, instead, args, args.tune_all or delay_us == GOAL_DELAY_US)
                document.rows += rows
                document.null_spreads.append(null_spread(times))
                off_us = next(row["value"] for row in rows if row["arm"] == OFF)
                nulls_us.append(document.null_spreads[-1] * off_us)
                share_table(name, rows)
            document.write(args.out)
        del weights, hot
    return nulls_us


def share_table(name: str, rows: list[dict]) -> None:
    shown = {"arm": "", "variant": "", "value": ".2f", "ratio_to_off": ".3f", "saved_us": ".2f", "share": ".2f"}
    shown |= {"share_of_hot": ".2f", "share_of_ideal": ".2f"}
    console.print(row_table(f"{name}: us a window, and the share of the cold-to-hot gap closed", rows, shown))


if __name__ == "__main__":
    raise SystemExit(main())
