"""The lines that benchmarks.sglang_decode printed, as one table: decode step with the plugin / without it."""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.sglang_decode import PLANNED, TUNED, WINDOWS_OFF

OFF, ON, NULL = "off", "on", "off again"
SERVED = "tuned while serving"  # with DSV41_L2_PREFETCH_TUNE=1; older files have no such starts
QUANTITIES = {"step_us": "a step", "graph_us": "its graph alone"}


@dataclass(frozen=True)
class Ratios:
    """Of one delay and quantity: the median over the turns of (median of a start / median of the off start beside it)."""

    delay_us: float
    quantity: str  # a key of QUANTITIES
    off_us: float
    on: float
    null: float
    null_spread: float  # largest distance of a null ratio from 1
    tuned: float  # on, with the windows as `tune` left them, / off
    windows_off: float  # on, with every window patched to 0 bytes, / off
    served: float  # the graph that the plugin kept, having measured it while it served, / off
    num_windows: int
    tokens_equal: bool


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def ratios(starts: list[dict]) -> list[Ratios]:
    """starts: in the order in which they ran, off, on and off again in turns.

    Raises ValueError when a delay does not have as many starts of each kind.
    """
    by_delay: dict[float, dict[str, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for start in starts:
        by_delay[start["delay_us"]][start["start"]].append(start)
    found = []
    for delay_us, kinds in by_delay.items():
        counts = {name: len(kinds[name]) for name in (OFF, ON, NULL)}
        if len(set(counts.values())) != 1:
            raise ValueError(f"delay {delay_us} us: expected as many starts of each kind, got {counts}")
        found += [_ratios_of(delay_us, quantity, kinds) for quantity in QUANTITIES]
    return found


def _ratios_of(delay_us: float, quantity: str, kinds: dict[str, list[dict]]) -> Ratios:
    off = [statistics.median(start[quantity][PLANNED]) for start in kinds[OFF]]

    def against_off(name: str, setting: str = PLANNED) -> list[float]:
        pairs = zip(kinds[name], off)
        return [statistics.median(start[quantity][setting]) / us for start, us in pairs if setting in start[quantity]]

    null = against_off(NULL)
    everything = [start for group in kinds.values() for start in group]
    return Ratios(
        delay_us,
        quantity,
        off_us=statistics.median(off),
        on=_median(against_off(ON)),
        null=_median(null),
        null_spread=max(abs(ratio - 1) for ratio in null),
        tuned=_median(against_off(ON, TUNED)),
        windows_off=_median(against_off(ON, WINDOWS_OFF)),
        served=_median(against_off(SERVED)),
        num_windows=max((s["num_windows"] for s in kinds[ON][0].get("signatures", [])), default=0),
        tokens_equal=len({start["tokens"] for start in everything}) == 1
        and all(start["tokens_equal_in_every_block"] for start in everything),
    )


def table(found: list[Ratios]) -> Table:
    result = Table(title="SGLang's decode / the same without the plugin")
    columns = ("peers late by us", "what", "off us", "on", "off again", "its spread", "tuned", "windows off",
               "tuned while serving", "windows", "tokens")  # fmt: skip
    for column in columns:
        result.add_column(column, justify="right")
    for r in found:
        result.add_row(
            f"{r.delay_us:g}",
            QUANTITIES[r.quantity],
            f"{r.off_us:.1f}",
            f"{r.on:.3f}",
            f"{r.null:.3f}",
            f"{r.null_spread:.3f}",
            f"{r.tuned:.3f}",
            f"{r.windows_off:.3f}",
            f"{r.served:.3f}",
            str(r.num_windows),
            "equal" if r.tokens_equal else "DIFFERENT",
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="JSON lines")
    lines = parser.parse_args().file.read_text().splitlines()
    Console(width=120).print(table(ratios([json.loads(line) for line in lines])))


if __name__ == "__main__":
    main()
