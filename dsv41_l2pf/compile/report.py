"""What the pass found and did in each graph of this process."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

GRADIENTS = "gradients are recorded: compile under torch.no_grad() or torch.inference_mode()"


@dataclass(frozen=True)
class WindowReport:
    """One collective of a compiled graph. weights: names in reading order. reason: why it has no window, or ''."""

    kind: str
    weights: tuple[str, ...] = ()
    window_bytes: int = 0
    planned_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True)
class GraphReport:
    """One compiled graph.

    windows: one for each collective, in order. rows: weights of which only rows are read. routed: weights of which a
    router chooses what is read; neither is planned. reason: why the graph was not edited, or ''.
    """

    windows: tuple[WindowReport, ...] = ()
    rows: tuple[str, ...] = ()
    routed: tuple[str, ...] = ()
    reason: str = ""

    @property
    def num_collectives(self) -> int:
        return len(self.windows)

    @property
    def num_windows(self) -> int:
        return sum(not window.reason for window in self.windows)

    @property
    def planned_bytes(self) -> int:
        return sum(window.planned_bytes for window in self.windows)

    def __str__(self) -> str:
        if self.reason:
            return f"not edited: {self.reason}"
        parts = [
            f"{self.num_windows} windows of {self.num_collectives} collectives, {self.planned_bytes} bytes planned"
        ]
        without = Counter(window.reason for window in self.windows if window.reason)
        parts += [f"{count} without: {reason}" for reason, count in without.items()]
        if self.rows:
            parts.append("only rows are read: " + ", ".join(self.rows))
        if self.routed:
            parts.append("routed experts, not planned: " + ", ".join(self.routed))
        return "; ".join(parts)


_reports: deque[GraphReport] = deque(maxlen=1024)


def add_report(report: GraphReport) -> None:
    _reports.append(report)


def reports() -> list[GraphReport]:
    """The graphs compiled by backend `dsv41` in this process, oldest first."""
    return list(_reports)


def clear_reports() -> None:
    _reports.clear()
