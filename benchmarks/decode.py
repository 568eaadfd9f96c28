"""Graph-captured decode steps of one rank, with an emulated collective: off, three rivals, ours and the ideal."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

import torch
from rich.progress import track

from dsv41_l2pf.tune import DEFAULT_ROUNDS

from .arms import RIVALS, Ours, calibration
from .common import (
    Document,
    Goal,
    console,
    environment,
    finish,
    introduce,
    parser,
    require_cuda,
    row_table,
)
from .models import MIB, Shape, Slice, deepseek_v41_flash, llama_70b, random_bytes
from .runs import AUTO, IDEAL, TUNED, Run, null_of, ratio_of
from .timing import OFF, Timed, null_spread, row, time_in_turns

MODELS = {
    "tp4": lambda: llama_70b(4),
    "tp8": lambda: llama_70b(8),
    "deepseek": lambda: deepseek_v41_flash(wo_a=False),
    "deepseek-wo_a": lambda: deepseek_v41_flash(wo_a=True),
}
DELAYS_US = (2.0, 5.0, 15.0, 26.0)
TOKENS = (1, 4, 6, 16, 96)
# Every delay at the first, every number of tokens at the second.
_USUAL_TOKENS, _USUAL_DELAY_US = 16, 5.0
SWEEP_MIB = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40)
_IDEAL_BUDGETS = (16 * MIB, 24 * MIB, 32 * MIB, 40 * MIB)
_CACHE_STATE = (
    "off is the same graph without us; a step reads many times more than L2 holds, so every weight starts in DRAM; "
    "ideal is off less what the GEMMs gain when the weights were read right before, against other bytes read there"
)

# model, tokens, delay -> the most that a step may take, of off
STEP_GOALS = {
    ("tp4", 16, 5.0): 0.92,
    ("tp8", 16, 5.0): 0.92,
    ("deepseek", 16, 5.0): 0.965,
    ("deepseek", 16, 15.0): 0.965,
    ("deepseek", 16, 26.0): 0.98,
}
_SHARE_GOALS = ("tp4", "tp8")


@dataclass(frozen=True)
class Case:
    model: str
    num_tokens: int
    delay_us: float

    def name(self, shape: Shape) -> str:
        return f"{shape.name}, M={self.num_tokens}, {self.delay_us:g} us"

    @property
    def step_goal(self) -> float | None:
        return STEP_GOALS.get((self.model, self.num_tokens, self.delay_us))


def cases_of(model: str, tokens: list[int], delays_us: list[float]) -> list[Case]:
    """The usual number of tokens at every delay, then the others at the usual delay; those with a goal first."""
    usual_tokens = _USUAL_TOKENS if _USUAL_TOKENS in tokens else tokens[0]
    usual_delay = _USUAL_DELAY_US if _USUAL_DELAY_US in delays_us else delays_us[0]
    if model == "deepseek-wo_a":
        return [Case(model, usual_tokens, usual_delay)]
    cases = [Case(model, usual_tokens, delay) for delay in delays_us]
    cases += [Case(model, count, usual_delay) for count in tokens if count != usual_tokens]
    return sorted(cases, key=lambda case: case.step_goal is None)


def sweep(run: Run, ours: Ours, num_rounds: int, case: Case) -> tuple[list[dict[str, Any]], float]:
    """Fixed budgets in the live graph of `ours_auto`; also the ratio of auto to the best of them."""
    replay = next(arm.replay for arm in run.arms if arm.name == AUTO)
    arms = [Timed(OFF, run.off.replay), Timed("auto", replay, lambda: ours.set_all(-1))]
    for mib in SWEEP_MIB:
        prepare = lambda mib=mib: ours.set_all(mib * MIB)  # noqa: E731
        arms.append(Timed(f"{mib} MiB", replay, prepare, {"budget_mib": mib}))
    times = time_in_turns(arms, num_rounds)
    ours.set_all(-1)
    of_case = {"model": case.model, "num_tokens": case.num_tokens, "delay_us": case.delay_us}
    rows = [row(run.case, arm, times, **of_case) for arm in arms[1:]]
    auto = rows[0]["ratio_to_off"]
    for entry in rows:
        entry["arm"] = "sweep_auto" if entry["arm"] == "auto" else "sweep"
    return rows, auto / min(entry["ratio_to_off"] for entry in rows[1:])


def measure(
    case: Case, weights: Slice, instead: torch.Tensor, args: argparse.Namespace
) -> tuple[list[dict], float, float]:
    """The rows of one case, its null spread, and the ratio of auto to the best fixed budget (nan when not swept)."""
    run = Run(case.name(weights.shape), weights, case.num_tokens, case.delay_us)
    run.add_rivals()
    run.add_ideal(list(_IDEAL_BUDGETS), instead)
    ours = run.add_ours(args.tune_rounds)
    times = time_in_turns(run.arms, args.rounds)
    extra = {"model": case.model, "num_tokens": case.num_tokens, "delay_us": case.delay_us}
    rows = run.rows(times, **extra)
    swept: list[dict] = []
    to_best = math.nan
    if case.step_goal is not None and not args.no_sweep:
        swept, to_best = sweep(run, ours, args.sweep_rounds, case)
    return [*rows, *swept], null_spread(times), to_best


def goals_of(case: Case, name: str, rows: list[dict], to_best: float) -> list[Goal]:
    goals, null = [], null_of(rows, name)
    auto, tuned = ratio_of(rows, name, AUTO), ratio_of(rows, name, TUNED)
    if case.step_goal is not None:
        for arm in (TUNED, AUTO):
            goals.append(Goal(f"{name}: step of off, {arm}", ratio_of(rows, name, arm), case.step_goal))
    if case.step_goal is not None and case.model in _SHARE_GOALS:
        saving = 1 - ratio_of(rows, name, IDEAL)
        share = (1 - tuned) / saving if saving > 0 else math.nan
        goals.append(Goal(f"{name}: share of the ideal saving, {TUNED}", share, 0.9, at_most=False))
    if not math.isnan(to_best):
        goals.append(Goal(f"{name}: auto budget of the best fixed one", to_best, 1.01))
    goals.append(Goal(f"{name}: never slower, {TUNED}", tuned, 1.0, slack=null))
    best_rival = min(ratio_of(rows, name, rival) for rival in RIVALS)
    goals.append(Goal(f"{name}: ours less the best rival", min(auto, tuned) - best_rival, 0.0, slack=null))
    return goals


def arguments() -> argparse.Namespace:
    found = parser("decode", __doc__.splitlines()[0])
    found.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    found.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS), help="rows M of every GEMM")
    found.add_argument("--delays", type=float, nargs="+", default=list(DELAYS_US), help="peer delays in us")
    found.add_argument("--rounds", type=int, default=15, help="rounds in which every arm has its turn")
    found.add_argument("--sweep-rounds", type=int, default=9, help="the same for the sweep of fixed budgets")
    found.add_argument("--no-sweep", action="store_true")
    found.add_argument("--tune-rounds", type=int, default=DEFAULT_ROUNDS, help="rounds of tune")
    args = found.parse_args()
    if args.quick:
        args.tokens, args.delays = [_USUAL_TOKENS], [_USUAL_DELAY_US]
        args.rounds = args.sweep_rounds = 4
    return args


def chosen_cases(models: list[str], tokens: list[int], delays_us: list[float]) -> list[list[Case]]:
    """Groups of cases of one model each. Those with a goal come first, so that a deadline costs none of them."""
    wanted = [cases_of(model, tokens, delays_us) for model in models]
    with_goal = [[case for case in cases if case.step_goal is not None] for cases in wanted]
    without = [[case for case in cases if case.step_goal is None] for cases in wanted]
    return [cases for cases in (*with_goal, *without) if cases]


def main() -> int:
    args = arguments()
    require_cuda()
    document = Document("decode", environment(args.commit))
    introduce("decode", document.record, _CACHE_STATE)
    document.extra["calibration"] = calibration()
    instead = random_bytes(512 * MIB)
    for cases in chosen_cases(args.models, args.tokens, args.delays):
        shape = MODELS[cases[0].model]()
        weights = Slice(shape)
        for case in track(cases, description=shape.name, console=console):
            name = case.name(shape)
            if document.elapsed_s > args.deadline_s:
                document.skipped.append(name)
                continue
            with document.case(name):
                rows, spread, to_best = measure(case, weights, instead, args)
                document.rows += rows
                document.null_spreads.append(spread)
                document.goals += goals_of(case, name, rows, to_best)
                step_table(name, rows)
            document.write(args.out)
        del weights
    return finish(document, args)


def step_table(name: str, rows: list[dict]) -> None:
    shown = {"arm": "", "variant": "", "budget_mib": "g", "value": ".1f", "ratio_to_off": ".4f"}
    shown |= {"ratio_low": ".4f", "ratio_high": ".4f", "planned_mib": ".1f", "num_windows_on": "d"}
    console.print(row_table(f"{name}: step in us", rows, shown))


if __name__ == "__main__":
    raise SystemExit(main())
