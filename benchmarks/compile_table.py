"""What torch.compile makes of the windows: how many, how many bytes, what placing them costs, and what the step gains.

One rank's slice of transformers models, one token a forward, in four ways: eager, captured, compiled and captured, and
compiled with mode="reduce-overhead". Eager and captured forwards get their windows from `attach`, compiled ones from
`backend="dsv41"`. The JSON also becomes the table in docs/compile.md: `--page` writes that again, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from rich.progress import track

import dsv41_l2pf
from dsv41_l2pf.compile import GraphReport, backend, reports
from dsv41_l2pf.demo.gpu_model import llama_config
from dsv41_l2pf.watching import NUM_LEARNING, NUM_TURNS

from .arms import calibration, notes_of
from .common import (
    ROOT,
    Document,
    Goal,
    console,
    environment,
    goal_table,
    introduce,
    number,
    parser,
    require_cuda,
    row_table,
)
from .models import MIB
from .runs import null_of, ratio_of
from .timing import NULL, OFF, Captured, Timed, capture, null_spread, require_same_outputs, row, time_in_turns
from .transformers_decode import Peers, make_model, qwen3_moe_config

ON, WATCHED = "on", "watched"  # watched: every operator of an eager forward is looked at, whether it pays or not
EAGER, CAPTURED, COMPILED, REDUCED = "eager", "captured", "compiled", "reduce-overhead"
WAYS = (EAGER, CAPTURED, COMPILED, REDUCED)
# word -> (name, config of so many layers, suffixes of the modules whose outputs the ranks sum)
MODELS = {
    "llama": ("Llama-70B class bf16 tp4", llama_config, ("o_proj", "down_proj")),
    "qwen3-moe": ("Qwen3-MoE-30B class bf16 tp4", qwen3_moe_config, ("o_proj", "mlp")),
}
PAGE = ROOT / "docs" / "compile.md"
BEGIN, END = "<!-- compile_table: begin -->", "<!-- compile_table: end -->"
_DELAY_US = 5.0
_COMPILE_GOAL = 1.05
_EAGER_GOAL = 2.0  # a watched forward, of one alone
_NUM_UNDECIDED = NUM_LEARNING + 2 * NUM_TURNS + 1  # eager forwards until it is known whether to watch them
_CACHE_STATE = (
    "off is the same model, run in the same way, without us; a step reads many times more than L2 holds, so every "
    "weight starts in DRAM; the logits have the same bits before anything is timed"
)

Step = Callable[[], list[torch.Tensor]]


def step_of(forward: Callable) -> Step:
    """One forward of one token without a cache: it reads the weights that a decode step reads."""
    token = torch.full((1, 1), 17, device="cuda")

    def step() -> list[torch.Tensor]:
        return [forward(input_ids=token, use_cache=False).logits]

    return step


def compiled(model: torch.nn.Module, name: str, **options: Any) -> Step:
    return step_of(torch.compile(model, backend=name, fullgraph=True, **options))


def reduced(model: torch.nn.Module, name: str) -> Step:
    """A step that copies its outputs: the next one overwrites what a CUDA graph tree returns."""
    step = compiled(model, name, mode="reduce-overhead")

    def run() -> list[torch.Tensor]:
        torch.compiler.cudagraph_mark_step_begin()
        return [output.clone() for output in step()]

    return run


def compile_seconds(model: torch.nn.Module, name: str) -> float:
    """How long the first call of a compiled model takes, nothing of it cached."""
    torch.compiler.reset()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with torch.compiler.config.patch(force_disable_caches=True):
        compiled(model, name)()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def measure_compilation(model: torch.nn.Module, num_rounds: int) -> dict[str, Any]:
    """What the pass finds in a model, and its time beside that of everything else."""
    placing: list[float] = []
    place = backend.place_in_dynamo

    def timed(*args: Any) -> GraphReport:
        begin = time.perf_counter()
        report = place(*args)
        placing.append(time.perf_counter() - begin)
        return report

    compile_seconds(model, "inductor")  # imports, and what Triton caches for itself
    off, on = [], []
    with mock.patch.object(backend, "place_in_dynamo", timed):
        for _ in range(num_rounds):
            off.append(compile_seconds(model, "inductor"))
            on.append(compile_seconds(model, "dsv41"))
    return {
        "num_collectives": reports()[-1].num_collectives,
        **static_notes(),
        "compile_off_s": statistics.median(off),
        "compile_on_s": statistics.median(on),
        "compile_ratio": statistics.median(on) / statistics.median(off),
        "place_s": statistics.median(placing),
    }


def static_notes() -> dict[str, Any]:
    """What the last graph compiled with `backend="dsv41"` got."""
    report = reports()[-1]
    return {"num_windows": report.num_windows, "planned_mib": report.planned_bytes / MIB}


class Pair:
    """The same model twice, on the device: one is left alone, the other gets the windows."""

    def __init__(self, word: str, num_layers: int) -> None:
        _, config, row_parallel = MODELS[word]
        self.off, self.on = (make_model(config(num_layers), "cuda") for _ in range(2))
        for model in (self.off, self.on):
            Peers(model, row_parallel).delay_us = _DELAY_US

    @contextmanager
    def arms(self, way: str) -> Iterator[list[Timed]]:
        """off, null and on, to be timed inside. Raises RuntimeError unless all return the same bits."""
        torch.compiler.reset()
        if way == COMPILED:
            off, on = compiled(self.off, "inductor"), compiled(self.on, "dsv41")
            yield graph_arms(way, capture(off), capture(off), capture(on), static_notes)
            return
        if way == REDUCED:
            yield eager_arms(way, reduced(self.off, "inductor"), reduced(self.on, "dsv41"), static_notes)
            return
        prefetcher = dsv41_l2pf.attach(self.on)

        def learned() -> dict[str, Any]:
            return notes_of(prefetcher.status()["signatures"][0])

        off, on = step_of(self.off), step_of(self.on)
        try:
            if way == CAPTURED:
                yield graph_arms(way, capture(off), capture(off), capture(on), learned)
                return

            def watched() -> list[torch.Tensor]:
                with mock.patch.object(dsv41_l2pf.Prefetcher, "is_measuring", True):
                    return on()

            for _ in range(_NUM_UNDECIDED):
                off(), on()
            yield [*eager_arms(way, off, on, learned), Timed(WATCHED, watched)]
        finally:
            prefetcher.detach()


def graph_arms(way: str, off: Captured, null: Captured, on: Captured, notes: Callable[[], dict]) -> list[Timed]:
    require_same_outputs(f"{way}, {NULL}", null, off)
    require_same_outputs(f"{way}, {ON}", on, off)
    return [Timed(OFF, off.replay), Timed(NULL, null.replay), Timed(ON, on.replay, notes=notes())]


def eager_arms(way: str, off: Step, on: Step, notes: Callable[[], dict]) -> list[Timed]:
    for _ in range(3):
        expected, got = off()[0], on()[0]
    if not torch.equal(got, expected):
        raise RuntimeError(f"{way}, {ON}: the logits differ from off: nothing was timed")
    return [Timed(OFF, off), Timed(NULL, off), Timed(ON, on, notes=notes())]


def goals_of(case: str, way: str, rows: list[dict[str, Any]]) -> list[Goal]:
    goals = [Goal(f"{case}: never slower", ratio_of(rows, case, ON), 1.0, slack=null_of(rows, case))]
    if way == EAGER:
        goals.append(Goal(f"{case}: a watched forward of one alone", ratio_of(rows, case, WATCHED), _EAGER_GOAL))
    return goals


def measure(document: Document, word: str, args: argparse.Namespace) -> None:
    """Adds the rows and goals of one model."""
    name, pair = MODELS[word][0], Pair(word, args.layers)
    with document.case(f"{name}, compilation"):
        found = measure_compilation(pair.on, args.compile_rounds)
        document.extra["compilation"][name] = found
        document.goals.append(
            Goal(f"{name}: compiling, of compiling without us", found["compile_ratio"], _COMPILE_GOAL)
        )
        console.print(row_table(f"{name}: compilation", [found], dict.fromkeys(found, ".4g")))
    for way in track(args.ways, description=name, console=console):
        case = f"{name}, {way}"
        if document.elapsed_s > args.deadline_s:
            document.skipped.append(case)
            continue
        with document.case(case), pair.arms(way) as arms:
            times = time_in_turns(arms, args.rounds)
            rows = [row(case, arm, times, model=name, way=way) for arm in arms]
            document.rows += rows
            document.null_spreads.append(null_spread(times))
            document.goals += goals_of(case, way, rows)
            shown = {"arm": "", "value": ".1f", "ratio_to_off": ".4f", "ratio_low": ".4f", "ratio_high": ".4f"}
            console.print(row_table(f"{case}: step in us", rows, shown | {"num_windows": "d", "planned_mib": ".1f"}))


def table(content: Mapping[str, Any]) -> str:
    """The measured table as Markdown. content: the JSON."""
    columns = ["model", "windows / collectives", "planned MiB", "compile time", *WAYS]
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    for name, found in content["compilation"].items():
        steps = [ratio_of(content["rows"], f"{name}, {way}", ON) for way in WAYS]
        lines.append(
            [
                name,
                f"{found['num_windows']} / {found['num_collectives']}",
                f"{found['planned_mib']:.1f}",
                f"{number(found['compile_ratio'])} of {found['compile_off_s']:.1f} s, placing {found['place_s']:.3f} s",
                *(number(step) for step in steps),
            ]
        )
    head = (
        f"{content['gpu']}, driver {content['driver']}, torch {content['torch']}, commit {content['commit'][:12]}; "
        f"collectives of {content['delay_us']:g} us, {content['num_layers']} layers. The last columns are step times "
        f"with us of those without; chance alone moves them by {number(content['null_spread'])}."
    )
    return "\n".join([head, "", *("| " + " | ".join(line) + " |" for line in lines)])


def write_page(content: Mapping[str, Any]) -> None:
    """Puts the table where docs/compile.md has room for it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(content)}\n{END}{after}")
    console.print(f"written: {PAGE}")


def arguments() -> argparse.Namespace:
    found = parser("compile_table", __doc__.splitlines()[0])
    found.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    found.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    found.add_argument("--layers", type=int, default=4)
    found.add_argument("--rounds", type=int, default=25, help="rounds in which every arm has its turn")
    found.add_argument("--compile-rounds", type=int, default=3, help="compilations of each kind that are timed")
    found.add_argument("--page", action="store_true", help="only write docs/compile.md from the JSON in --out")
    found.set_defaults(deadline_s=420)
    args = found.parse_args()
    if args.quick:
        args.models, args.layers, args.rounds, args.compile_rounds = args.models[:1], 2, 4, 1
    return args


def main() -> int:
    args = arguments()
    if args.page:
        write_page(json.loads((args.out / "compile.json").read_text()))
        return 0
    require_cuda()
    document = Document("compile", environment(args.commit))
    introduce("compile", document.record, _CACHE_STATE)
    document.extra |= {"calibration": calibration(), "compilation": {}}
    document.extra |= {"delay_us": _DELAY_US, "num_layers": args.layers}
    for word in args.models:
        with document.case(word), torch.no_grad():
            measure(document, word, args)
        document.write(args.out)
    console.print(goal_table("compile: the goals of issue 5", [goal.record() for goal in document.goals]))
    for case, error in document.failed.items():
        console.print(f"FAILED {case}: {error}")
    console.print(f"written after {document.elapsed_s:.0f} s: {document.write(args.out)}")
    return 1 if document.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
