"""The arms that `gap` and `decode` share: captures them, checks their outputs, and times them in turns."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

import torch

from dsv41_l2pf.tune import DEFAULT_ROUNDS

from .arms import GEOMETRIES, RIVALS, Geometry, Hooks, Ours, ReadFirst, Rival, tuning_notes, window_bytes
from .models import MIB, Slice
from .timing import NULL, OFF, Captured, Timed, capture, median_difference, quartiles, require_same_outputs, row

EMPTY, AUTO, TUNED, RECAPTURED, IDEAL = "empty", "ours_auto", "ours_tuned", "ours_recaptured", "ideal"
_REAL, _DUMMY = "real", "dummy"


@dataclass
class Run:
    """One case: a slice that decodes `num_tokens` tokens while its peers answer `delay_us` late."""

    case: str
    weights: Slice
    num_tokens: int
    delay_us: float
    arms: list[Timed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._inputs = self.weights.inputs(self.num_tokens)
        self.windows = self.weights.windows()
        self.off = self.capture(Hooks())
        self.add(OFF, self.off)
        self.add(NULL, self.capture(Hooks()))

    def capture(self, hooks: Hooks, weights: Slice | None = None) -> Captured:
        step = (weights or self.weights).step(hooks, self._inputs, self.delay_us)
        return capture(step, hooks.main_priority)

    def capture_of(self, weights: Slice) -> Captured:
        """`off` on other weights of the same shape."""
        return self.capture(Hooks(), weights)

    def add(self, name: str, captured: Captured, reference: Captured | None = None, **notes: Any) -> Timed:
        """Adds an arm once it has computed, bit for bit, what `reference` does; `off` when None."""
        require_same_outputs(f"{self.case}, {name}", captured, reference or self.off)
        timed = Timed(name, captured.replay, notes=notes)
        self.arms.append(timed)
        return timed

    def add_rivals(self) -> None:
        for geometry in GEOMETRIES:
            self.add(geometry.name, self.capture(Rival(geometry, self.windows)), **_published(geometry))

    def add_ideal(self, budgets: list[int], instead: torch.Tensor) -> None:
        """Two graphs a budget; budgets that no window fills are one."""
        largest = max(map(window_bytes, self.windows))
        for budget in sorted({min(budget, largest) for budget in budgets}):
            self.add(_ideal_name(_REAL, budget), self.capture(ReadFirst(self.windows, budget)), budget_bytes=budget)
            dummy = self.capture(ReadFirst(self.windows, budget, instead))
            self.add(_ideal_name(_DUMMY, budget), dummy, budget_bytes=budget)

    def add_ours(self, tune_rounds: int = DEFAULT_ROUNDS, with_tuned: bool = True) -> Ours:
        """`ours_auto` and, when asked for, `ours_tuned`: each has a prefetcher and a graph of its own.

        `ours_tuned` is the graph that tune measured, with nodes for windows that it switched off; `ours_recaptured` was
        captured after that, and has none.
        """
        auto = Ours(self.num_tokens)
        arm = self.add(AUTO, self.capture(auto))
        arm.notes = auto.notes()
        if with_tuned:
            tuned = Ours(self.num_tokens)
            captured = self.capture(tuned)
            arm = self.add(TUNED, captured)
            tuning = tuned.prefetcher.tune(
                captured.replay, baseline=self.off.replay, rounds=tune_rounds, progress=False
            )
            require_same_outputs(f"{self.case}, {TUNED}", captured, self.off)
            arm.notes = {**tuned.notes(), "tune": tuning_notes(tuning)}
            self.add(RECAPTURED, self.capture(tuned))
        return auto

    def rows(self, times: dict[str, list[float]], **extra: Any) -> list[dict[str, Any]]:
        """See `rows_of`."""
        return rows_of(self.case, self.arms, times, **extra)


def rows_of(case: str, arms: list[Timed], times: dict[str, list[float]], **extra: Any) -> list[dict[str, Any]]:
    """One row an arm: each rival by the better of its budgets, the ideal by the best."""
    rows = [row(case, arm, times, **extra) for arm in arms]
    plain = [found for found in rows if "budget_bytes" not in found]
    for rival in RIVALS:
        variants = [found for found in rows if found.get("rival") == rival]
        if variants:
            best = min(variants, key=lambda found: found["ratio_to_off"])
            measured = {found["arm"]: found["ratio_to_off"] for found in variants}
            plain.append({**best, "arm": rival, "variant": best["arm"], "variants": measured})
    budgets = [arm.notes["budget_bytes"] for arm in arms if arm.name.startswith(_REAL)]
    return [*plain, {**_ideal_row(case, budgets, times), **extra}] if budgets else plain


def _ideal_row(case: str, budgets: list[int], times: dict[str, list[float]]) -> dict[str, Any]:
    savings = {
        budget: median_difference(times, _ideal_name(_DUMMY, budget), _ideal_name(_REAL, budget)) for budget in budgets
    }
    best = max(savings, key=savings.get)
    dummy, real = times[_ideal_name(_DUMMY, best)], times[_ideal_name(_REAL, best)]
    low, share, high = quartiles([(d - r) / off for d, r, off in zip(dummy, real, times[OFF], strict=True)])
    return {
        "case": case,
        "arm": IDEAL,
        "value": statistics.median(times[OFF]) - savings[best],
        "unit": "us",
        "ratio_to_off": 1 - share,
        "ratio_low": 1 - high,
        "ratio_high": 1 - low,
        "budget_mib": best / MIB,
    }


def _published(geometry: Geometry) -> dict[str, Any]:
    return {"rival": geometry.arm, "budget_bytes": geometry.budget_bytes, "joins_each": geometry.joins_each}


def _ideal_name(which: str, budget_bytes: int) -> str:
    return f"{which} {budget_bytes / MIB:.2f} MiB"


def null_of(rows: list[dict[str, Any]], case: str) -> float:
    """The null spread of one case, from its row."""
    (found,) = [entry for entry in rows if entry["case"] == case and entry["arm"] == NULL]
    return max(abs(found["ratio_low"] - 1), abs(found["ratio_high"] - 1))


def ratio_of(rows: list[dict[str, Any]], case: str, arm: str) -> float:
    """ratio_to_off of one arm of one case; not a number when it was not measured."""
    found = [entry["ratio_to_off"] for entry in rows if entry["case"] == case and entry["arm"] == arm]
    return found[0] if found else float("nan")
