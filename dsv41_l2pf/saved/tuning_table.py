"""A tuning as tables."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..report import mib
from ..tuning import Tuning

_SHOWN_CANDIDATES = 12


def tuning_table(tuning: Tuning) -> Group:
    """The verdict, the windows as they were set, and the ratios of the candidates, best first."""
    verdict = "off: nothing is prefetched" if tuning.is_off else f"step time {tuning.ratio:.4f} of off"
    head = Text(
        f"mode {tuning.mode}, {tuning.num_tokens} tokens, {tuning.num_collectives} collectives: {verdict} "
        f"(noise {tuning.noise:.4f}, off takes {tuning.step_us:.1f} us). {tuning.reason}"
    )
    return Group(head, _windows(tuning), _candidates(tuning))


def _windows(tuning: Tuning) -> Table:
    num_on = len(tuning.windows) - tuning.num_off
    table = Table(title=f"{num_on} of {len(tuning.windows)} windows are on")
    table.add_column("after\ncollective", justify="right")
    table.add_column("window\nMiB", justify="right")
    table.add_column("budget\nMiB", justify="right")
    table.add_column("form")
    for window in tuning.windows:
        budget = mib(window.budget_bytes) if window.budget_bytes else "off"
        table.add_row(f"{window.collective_index} {window.kind}", mib(window.window_bytes), budget, window.form)
    return table


def _candidates(tuning: Tuning) -> Table:
    table = Table(title="what was measured: step time of a candidate / off")
    table.add_column("candidate", overflow="fold")
    table.add_column("ratio", justify="right")
    ranked = sorted(tuning.measured.items(), key=lambda item: item[1])
    for name, ratio in ranked[:_SHOWN_CANDIDATES]:
        table.add_row(Text(name), f"{ratio:.4f}")
    if len(ranked) > _SHOWN_CANDIDATES:
        table.add_row(f"and {len(ranked) - _SHOWN_CANDIDATES} more", "")
    return table
