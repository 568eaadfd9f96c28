"""Tensor-parallel decode on several GPUs of one host, with real collectives, through nothing but `dsv41_l2pf.attach`.

Run it with torchrun, one rank a GPU: `torchrun --nproc-per-node 2 -m benchmarks.multi_gpu`. Arms have their turns on
all ranks in lockstep, and the slowest rank's time is the step's. `--cpu` runs a tiny model on gloo ranks, eagerly: it
shows that the script runs, and its times mean nothing.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from dsv41_l2pf.demo.gpu_model import Decoder, llama_config
from dsv41_l2pf.tune import DEFAULT_ROUNDS

from . import multi_gpu_probes, sharded, transports
from .arms import GEOMETRIES, Rival, calibration, notes_of, tuning_notes
from .common import Document, Goal, console, environment, finish, introduce, parser, require_cuda, row_table
from .multi_gpu_case import Case, Step, frontier_of, share_behind
from .ranks import Ranks, run
from .runs import AUTO, TUNED, null_of, ratio_of
from .timing import NULL, OFF, Timed
from .transformers_decode import Attached, settings_of, warm_up

NUM_TOKENS = (1, 4, 16)
SEED = "seed"
LATE_US = 30.0
GOAL_RATIO = 0.97  # of off, at one token, on at least one of NCCL and symmetric memory
_CACHE_STATE = (
    "off is the same model's graph from before `attach`; a step reads many times more than L2 holds, so every weight "
    "starts in DRAM; tokens and logits are the same, bit for bit, on every rank before anything is timed"
)
_CPU_WARNING = "--cpu: eager steps of a tiny model on gloo ranks. THE TIMES MEAN NOTHING."

def measure(case: Case, args: argparse.Namespace, late: bool = False) -> tuple[list[dict[str, Any]], float, dict]:
    """All arms of one case, or off and ours with its first rank late: rows, null spread, frontier."""
    case.collectives.late_us = LATE_US if late and case.ranks.is_first else 0.0
    warm_up(case.decoder)
    off, null = case.capture(), case.capture()
    case.expect_of(off)
    case.require_same(NULL, null)
    plain = [(OFF, off), (NULL, null)]
    if case.on_gpu and not late:
        windows = sharded.windows_of(case.decoder.model)
        rival = Rival(GEOMETRIES[0], windows, str(case.ranks.device))
        seed = case.capture(sharded.HookedDecoder(case.decoder, case.collectives, rival))
        case.require_same(SEED, seed)
        plain.append((SEED, seed))
    ours = Attached(case.decoder, lambda decoder: case.capture())
    try:
        case.require_same(AUTO, ours.captured)
        # An eager step after `attach` prefetches: there off is its windows switched off.
        before = (lambda: None) if case.on_gpu else ours.switch_off
        arms = [case.arm(name, step, before) for name, step in plain]
        arms.append(case.arm(AUTO, ours.captured, lambda: ours.apply(ours.auto), **notes_of(ours.signature())))
        if not late:
            arms.append(_tuned_arm(case, ours, off, args.tune_rounds))
        rows, spread = case.measure(arms, args.rounds, ranks_agree=case.ranks_agree())
        frontier = frontier_of(ours.captured) if case.on_gpu else {}
    finally:
        ours.prefetcher.detach()
        case.collectives.late_us = 0.0
    return rows, spread, frontier


def _tuned_arm(case: Case, ours: Attached, off: Step, tune_rounds: int) -> Timed:
    tuning = ours.prefetcher.tune(
        case.steps.replay_of(ours.captured),
        num_tokens=case.decoder.token.numel(),
        baseline=case.steps.replay_of(off) if case.on_gpu else None,
        rounds=tune_rounds,
        process_group=case.ranks.host,
        progress=False,
    )
    decisions = case.ranks.all_of((tuning.ratio, tuning.noise, tuning.measured))
    case.ranks.require_none("" if decisions[0] == decisions[-1] else "tune decided differently on this rank")
    tuned = settings_of(ours.signature())
    case.require_same(TUNED, ours.captured)
    notes = {**notes_of(ours.signature()), "tune": tuning_notes(tuning)}
    return case.arm(TUNED, ours.captured, lambda: ours.apply(tuned), **notes)


def goals_of(document: Document) -> list[Goal]:
    """Never slower, case by case; and the saving that at least one case of one token must reach."""
    tuned = [entry for entry in document.rows if entry["arm"] == TUNED]
    goals = []
    for found in tuned:
        slack = null_of(document.rows, found["case"])
        goals.append(Goal(f"{found['case']}: never slower, {TUNED}", found["ratio_to_off"], 1.0, slack=slack))
    ones = [found["ratio_to_off"] for found in tuned if found["num_tokens"] == 1]
    if ones:
        goals.insert(0, Goal(f"M=1: step of off, {TUNED}, the best of the cases", min(ones), GOAL_RATIO))
    late = dict.fromkeys(entry["case"] for entry in document.rows if entry.get("late_us"))
    for name in late:
        ratio, slack = ratio_of(document.rows, name, AUTO), null_of(document.rows, name)
        goals.append(Goal(f"{name}: never slower, {AUTO}", ratio, 1.0, slack=slack))
    return goals


class Visit:
    """One run of the benchmark on all ranks; the document is the first rank's."""

    def __init__(self, ranks: Ranks, document: Document, args: argparse.Namespace) -> None:
        self.ranks, self.document, self.args = ranks, document, args
        self._graph_goals: list[Goal] = []
        document.extra["frontier"] = {}

    def run(self) -> None:
        """What matters most first: the deadline may come before the rest."""
        for transport in self.args.transports:
            self._probe(transport)
        config = (sharded.tiny_config if self.args.cpu else llama_config)(self.args.layers, self.ranks.num_ranks)
        make = partial(sharded.make_slice, config, rank=self.ranks.rank, device=self.ranks.device)
        models = {dtype: make(dtype=dtype) for dtype in self.args.dtypes}
        for num_tokens in self.args.num_tokens:
            for dtype, model in models.items():
                for transport in self.args.transports:
                    self._measure_case(model, dtype, num_tokens, transport)

    def _is_late(self, name: str) -> bool:
        """Whether the deadline came, for all ranks alike."""
        if not any(self.ranks.all_of(self.document.elapsed_s > self.args.deadline_s)):
            return False
        self.document.skipped.append(name)
        return True

    def _measure_case(self, model: torch.nn.Module, dtype: str, num_tokens: int, chosen: str) -> None:
        name = f"{dtype} tp{self.ranks.num_ranks} {chosen}, M={num_tokens}"
        if self._is_late(name):
            return
        with self.ranks.case(self.document, name):
            transport = transports.make(chosen)
            collectives = sharded.Collectives(model, transport)
            try:
                case = Case(name, self.ranks, Decoder(model, num_tokens), collectives)
                self._add(case, transport, dtype, num_tokens, late=False)
                if num_tokens == self.args.num_tokens[0] and dtype == self.args.dtypes[0]:
                    case.name += f", rank 0 late by {LATE_US:g} us"
                    self._add(case, transport, dtype, num_tokens, late=True)
            finally:
                collectives.remove()
        self._write()

    def _add(self, case: Case, transport: transports.Transport, dtype: str, num_tokens: int, late: bool) -> None:
        rows, spread, frontier = measure(case, self.args, late)
        extra = {"dtype": dtype, "num_tokens": num_tokens, "late_us": LATE_US if late else 0.0}
        self.document.rows += [{**entry, **extra} for entry in rows]
        self.document.null_spreads.append(spread)
        if frontier:
            self.document.extra["frontier"][case.name] = frontier
            share = share_behind(frontier, transport.kernel)
            text = f"{case.name}: share of launch-order edges from the collective's kernel"
            self._graph_goals.append(Goal(text, share, 1.0, at_most=False))
        shown = {"arm": "", "value": ".1f", "ratio_to_off": ".4f", "ratio_low": ".4f", "ratio_high": ".4f"}
        if self.ranks.is_first:
            console.print(row_table(f"{case.name}: step in us, the slowest rank's", rows, shown))

    def _probe(self, chosen: str) -> None:
        name = f"collective of {chosen}"
        if self._is_late(name):
            return
        with self.ranks.case(self.document, name):
            rows, goal = multi_gpu_probes.latency(name, self.ranks, transports.make(chosen), self.args.rounds)
            self.document.rows += rows
            self._graph_goals.append(goal)
        self._write()

    def _write(self) -> None:
        if not self.args.cpu:
            self.document.goals = goals_of(self.document) + self._graph_goals
        if self.ranks.is_first:
            self.document.write(self.args.out)


def arguments() -> argparse.Namespace:
    found = parser("multi_gpu", __doc__.splitlines()[0])
    found.add_argument("--cpu", action="store_true", help="gloo ranks, a tiny model, no graphs: does it run")
    found.add_argument("--layers", type=int, default=8, help="decoder layers of the model")
    found.add_argument("--dtypes", nargs="+", choices=sharded.DTYPES, default=list(sharded.DTYPES))
    found.add_argument("--num-tokens", type=int, nargs="+", default=list(NUM_TOKENS), help="sequences decoded at once")
    found.add_argument("--transports", nargs="+", choices=transports.TRANSPORTS, default=list(transports.TRANSPORTS))
    found.add_argument("--rounds", type=int, default=15, help="rounds in which every arm has its turn")
    found.add_argument("--tune-rounds", type=int, default=DEFAULT_ROUNDS, help="rounds of tune")
    args = found.parse_args()
    if args.quick:
        args.num_tokens, args.rounds, args.tune_rounds = args.num_tokens[:1], 3, 2
    if args.cpu:
        args.layers, args.dtypes, args.transports = min(args.layers, 2), ["bf16"], [transports.GLOO]
    return args


def record_of(ranks: Ranks, commit: str) -> dict[str, str]:
    """`environment`, for all ranks."""
    record = environment(commit)
    launcher = f"torchrun --nproc-per-node {ranks.num_ranks}"
    command = record["command"].replace("python3", launcher, 1)
    return {**record, "gpu": f"{ranks.num_ranks} x {record['gpu']}", "command": command}


def main() -> int:
    args = arguments()
    if not args.cpu:
        require_cuda()
    ranks = Ranks.join(args.cpu)
    document = Document("multi_gpu", record_of(ranks, args.commit))
    console.quiet = not ranks.is_first
    introduce("multi_gpu", document.record, _CACHE_STATE)
    if args.cpu:
        document.extra["warning"] = _CPU_WARNING
        console.print(_CPU_WARNING)
    else:
        document.extra["calibration"] = calibration()
    ranks.barrier()
    with torch.inference_mode(), nullcontext() if args.cpu else torch.cuda.device(ranks.device):
        Visit(ranks, document, args).run()
    status = finish(document, args) if ranks.is_first else 0
    return max(ranks.all_of(status))


if __name__ == "__main__":
    run(main)
