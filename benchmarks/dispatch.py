"""What the operators cost the host, against an empty operator and against a Python + ctypes form like the seed's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from dsv41_l2pf import Config, Prefetcher
from dsv41_l2pf.demo.arms import Arm, interleave

from . import native
from .arms import MODE
from .common import Document, Goal, console, environment, finish, introduce, parser, row_table
from .models import MIB
from .timing import NULL, NUM_WARM_UPS, OFF, Timed, null_spread, row

OURS, SEED = "ours_auto", "seed"
_NUM_WINDOWS = 64
_WEIGHT_BYTES = 64 << 10  # small: what is timed is the host, and a full launch queue would show
_CALLS_PER_BLOCK = 256
_KIND = "all_reduce"
_PIECE_BYTES = 16 << 10
_CACHE_STATE = (
    "host time only; off is the empty operator of the same schema (outside a forward) or the same loop without a "
    "prefetch (windows); outside a GPU the seed's way has no streams to order and its launch is an empty C function"
)


Measured = tuple[list[dict[str, Any]], list[Goal], float]  # rows, goals, null spread


class SeedWay:
    """A prefetcher in Python and ctypes, written after the seed's way: one module-wide state, a table a window."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self._on_gpu = weights[0].is_cuda
        self._weights = weights
        self._state: dict[str, Any] = {"signature": None, "index": 0, "pending": None, "launched": 0}
        self._state |= {"learning": {}, "plans": {}}
        self._side = torch.cuda.Stream() if self._on_gpu else None
        self._launch = native.function("seed" if self._on_gpu else "nothing")

    def begin(self, signature: tuple[int, int, str]) -> None:
        state = self._state
        state["signature"], state["index"], state["launched"] = signature, 0, 0
        if not (self._on_gpu and torch.cuda.is_current_stream_capturing()):
            state["learning"][signature] = {}

    def before_collective(self) -> None:
        state = self._state
        signature = state["signature"]
        if signature is None:
            return
        self._join()
        state["index"] += 1
        plan = state["plans"].get(signature)
        table = plan.get(state["index"]) if plan else None
        if table is None:
            return
        tensor, num_segments = table
        error = self._enqueue(tensor, num_segments)
        if error:
            raise RuntimeError(f"seed's way: CUDA error {error}")
        state["pending"] = self._side
        state["launched"] += 1

    def _enqueue(self, tensor: torch.Tensor, num_segments: int) -> int:
        if not self._on_gpu:
            return self._launch(tensor.data_ptr(), num_segments, _PIECE_BYTES, None)
        self._side.wait_stream(torch.cuda.current_stream())
        return self._launch(tensor.data_ptr(), num_segments, self._side.cuda_stream)

    def record(self, *weights: torch.Tensor) -> None:
        state = self._state
        learned = state["learning"].get(state["signature"])
        if learned is None:
            return
        found = learned.setdefault(state["index"], [])
        for weight in weights:
            found.append((weight.data_ptr(), weight.numel() * weight.element_size()))

    def end(self) -> None:
        self._join()
        state = self._state
        signature = state["signature"]
        learned = state["learning"].pop(signature, None)
        if learned and signature not in state["plans"]:
            state["plans"][signature] = {
                index: (torch.tensor(segments, dtype=torch.int64, device=self._weights[0].device), len(segments))
                for index, segments in learned.items()
            }
        state["signature"] = None

    def _join(self) -> None:
        pending = self._state["pending"]
        if pending is not None:
            torch.cuda.current_stream().wait_stream(pending)
            self._state["pending"] = None


def _windows_off(data: torch.Tensor, weights: list[torch.Tensor]) -> Callable[[], None]:
    def run() -> None:
        for _weight in weights:
            pass

    return run


def _windows_seed(data: torch.Tensor, weights: list[torch.Tensor]) -> Callable[[], None]:
    way = SeedWay(weights)
    signature = (id(way), 1, MODE)

    def run() -> None:
        way.begin(signature)
        for weight in weights:
            way.before_collective()
            way.record(weight)
        way.end()

    return run


def _windows_ours(data: torch.Tensor, weights: list[torch.Tensor]) -> Callable[[], None]:
    prefetcher = Prefetcher(Config())
    handle, model = prefetcher.handle, prefetcher.model_id()
    begin, end = torch.ops.dsv41.collective_begin, torch.ops.dsv41.collective_end
    record = torch.ops.dsv41.record_weight

    def run() -> None:
        torch.ops.dsv41.begin_forward(handle, model, 1, MODE)
        for weight in weights:
            begin(data, _KIND)
            end(data)
            record([weight])
        torch.ops.dsv41.end_forward()

    run.prefetcher = prefetcher  # lives as long as the function does
    return run


WINDOWS = {OFF: _windows_off, NULL: _windows_off, SEED: _windows_seed, OURS: _windows_ours}


def _time_us(run: Callable[[], None], synchronize: Callable[[], None]) -> float:
    synchronize()
    begin = time.perf_counter_ns()
    run()
    elapsed_us = (time.perf_counter_ns() - begin) / 1e3
    synchronize()
    return elapsed_us


def _in_turns(
    runs: dict[str, Callable[[], None]], num_rounds: int, synchronize: Callable[[], None], repeats: int = 5
) -> dict[str, list[float]]:
    """Medians of `repeats` host times in us, by arm."""
    current = next(iter(runs.values()))

    def select(run: Callable[[], None]) -> Callable[[], None]:
        def prepare() -> None:
            nonlocal current
            current = run

        return prepare

    arms = [Arm(name, select(run)) for name, run in runs.items()]
    block = lambda: [_time_us(current, synchronize) for _ in range(repeats)]  # noqa: E731
    return interleave(arms, block, num_rounds, lambda: None)


def _rows(case: str, times: dict[str, list[float]], count: int) -> list[dict[str, Any]]:
    """One row an arm, its value divided by `count`, the calls or windows that were timed together."""
    rows = [row(case, Timed(arm, lambda: None), times) for arm in times]
    for entry in rows:
        entry["value"] /= count
    return rows


def outside(
    data: torch.Tensor, weights: list[torch.Tensor], num_rounds: int, synchronize: Callable[[], None]
) -> Measured:
    """Each operator outside a forward, against the empty operator of its schema."""
    arguments = {
        "collective_begin": (data, _KIND),
        "collective_end": (data,),
        "record_weight": (weights[:1],),
        "record_unplanned": (MIB,),
        "l2_join": (data,),
        "end_forward": (),
    }
    rows, goals, spreads = [], [], []
    for name, given in arguments.items():

        def many(op: Any, given: tuple = given) -> Callable[[], None]:
            def run() -> None:
                for _ in range(_CALLS_PER_BLOCK):
                    op(*given)

            return run

        empty, ours = getattr(torch.ops.dsv41_bench, name), getattr(torch.ops.dsv41, name)
        times = _in_turns({OFF: many(empty), NULL: many(empty), OURS: many(ours)}, num_rounds, synchronize)
        found = _rows(f"outside a forward: {name}", times, _CALLS_PER_BLOCK)
        rows += found
        excess = found[-1]["value"] - found[0]["value"]
        goals.append(Goal(f"outside a forward: {name}, us more than an empty op", excess, 1.0))
        spreads.append(null_spread(times))
    return rows, goals, max(spreads)


def windows(
    data: torch.Tensor, weights: list[torch.Tensor], num_rounds: int, synchronize: Callable[[], None]
) -> Measured:
    """A learned window (begin, end, one record) in eager forwards; all of them share the forward's own bracket."""
    runs = {name: make(data, weights) for name, make in WINDOWS.items()}
    for run in runs.values():
        for _ in range(NUM_WARM_UPS):
            run()
            synchronize()
    times = _in_turns(runs, num_rounds, synchronize)
    rows = _rows("eager: one learned window", times, len(weights))
    ours, seed = _value(rows, OURS), _value(rows, SEED)
    # On a CPU ours wakes a thread that really reads, while the seed's way calls an empty function.
    goals = [Goal("eager: a learned window, of the seed's way", ours / seed, 0.5)] if data.is_cuda else []
    return rows, goals, null_spread(times)


def _value(rows: list[dict[str, Any]], arm: str) -> float:
    return next(entry["value"] for entry in rows if entry["arm"] == arm)


def captures(data: torch.Tensor, weights: list[torch.Tensor], num_rounds: int) -> Measured:
    """Host time to capture a forward of collectives, with a window each or without."""

    def capture(run: Callable[[], None]) -> Callable[[], None]:
        stream = torch.cuda.Stream()

        def captured() -> None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                torch.ops.dsv41.emulated_all_reduce(data, 0.0, 4)
                run()
                graph.capture_end()

        with torch.cuda.stream(stream):
            for _ in range(NUM_WARM_UPS):
                torch.ops.dsv41.emulated_all_reduce(data, 0.0, 4)
                run()
                torch.cuda.synchronize()
        return captured

    runs = {name: capture(make(data, weights)) for name, make in WINDOWS.items()}
    times = _in_turns(runs, num_rounds, torch.cuda.synchronize, repeats=3)
    rows = _rows("capture: one window", times, len(weights))
    without, ours, seed = (_value(rows, arm) for arm in (OFF, OURS, SEED))
    goal = Goal("capture: a window, of the seed's way", (ours - without) / (seed - without), 0.5)
    return rows, [goal], null_spread(times)


def main() -> int:
    arguments = parser("dispatch", __doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=25, help="rounds in which every arm has its turn")
    arguments.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    args = arguments.parse_args()
    num_rounds = 4 if args.quick else args.rounds
    native.load()
    document = Document("dispatch", environment(args.commit), extra={"device": args.device})
    introduce("dispatch", document.record, _CACHE_STATE)
    on_gpu = args.device == "cuda"
    synchronize = torch.cuda.synchronize if on_gpu else (lambda: None)
    data = torch.ones(16384, device=args.device)
    weights = [torch.zeros(_WEIGHT_BYTES, dtype=torch.uint8, device=args.device) for _ in range(_NUM_WINDOWS)]
    parts = {"outside a forward": lambda: outside(data, weights, num_rounds, synchronize)}
    parts["eager windows"] = lambda: windows(data, weights, num_rounds, synchronize)
    if on_gpu:
        parts["captures"] = lambda: captures(data, weights, num_rounds)
    for name, measure in parts.items():
        with document.case(name):
            rows, goals, spread = measure()
            document.rows += rows
            document.goals += goals
            document.null_spreads.append(spread)
    shown = {"case": "", "arm": "", "value": ".3f", "unit": "", "ratio_to_off": ".3f"}
    console.print(row_table("host time a call or a window", document.rows, shown))
    return finish(document, args)


if __name__ == "__main__":
    raise SystemExit(main())
