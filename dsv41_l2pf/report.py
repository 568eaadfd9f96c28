"""What a prefetcher learned and launched, as rich tables that also print as text."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from .config import MIB

if TYPE_CHECKING:
    from .prefetcher import Prefetcher

_WIDTH = 120


def mib(num_bytes: int) -> str:
    """Bytes as MiB with two decimals."""
    return f"{num_bytes / MIB:.2f}"


def signature_table(status: dict) -> Table:
    """One row a signature of `Prefetcher.status()`."""
    table = Table(title=f"dsv41_l2pf {status['version']}: signatures of prefetcher {status['prefetcher']}")
    for column in ("model", "tokens", "collectives", "windows", "planned MiB", "launched"):
        table.add_column(column, justify="right")
    for column in ("mode", "state", "why not"):
        table.add_column(column)
    for signature in status["signatures"]:
        table.add_row(
            str(signature["model"]),
            str(signature["num_tokens"]),
            str(signature["num_collectives"]),
            str(signature["num_windows"]),
            mib(signature["planned_bytes"]),
            str(signature["num_launched"]),
            signature["mode"],
            signature["state"],
            signature["reason"],
        )
    return table


def largest_signature(status: dict) -> dict | None:
    """The signature with windows that plans the most bytes, or None."""
    planned = [signature for signature in status["signatures"] if signature["windows"]]
    return max(planned, key=lambda signature: signature["planned_bytes"], default=None)


def weight_names(prefetcher: Prefetcher, signature: dict) -> dict[int, list[str]]:
    """The names of the weights of every window of a signature, in reading order, by collective index."""
    names: dict[int, list[str]] = {}
    segments = prefetcher.plan_segments(signature["num_tokens"], signature["mode"], signature["model"])
    for collective_index, address, _num_bytes in segments:
        names.setdefault(collective_index, []).append(prefetcher.weight_name(address))
    return names


def brace(names: list[str]) -> str:
    """Several names as one, in the shell's way: model.layers.0.{mlp.up_proj, mlp.down_proj}.weight."""
    if len(names) < 2:
        return "".join(names)
    parts = [name.split(".") for name in names]
    shortest = min(map(len, parts)) - 1  # something of every name stays inside the braces
    head = next((i for i in range(shortest) if len({part[i] for part in parts}) > 1), shortest)
    rest = shortest - head
    tail = next((i for i in range(rest) if len({part[-1 - i] for part in parts}) > 1), rest)
    middle = ", ".join(".".join(part[head : len(part) - tail]) for part in parts)
    return ".".join([*parts[0][:head], "{" + middle + "}", *parts[0][len(parts[0]) - tail :]])


def fold(names: Iterable[str]) -> str:
    """Names that differ in numbers only as one, with their count: model.layers.*.mlp.experts.down_proj (48)."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"(?:^|(?<=\.))\d+(?=\.)", "*", name), []).append(name)
    return ", ".join(f"{folded} ({len(found)})" if len(found) > 1 else found[0] for folded, found in alike.items())


def window_table(signature: dict, names: dict[int, list[str]], max_windows: int | None = None) -> Table:
    """One row a window of a signature, for its first `max_windows`. names: see `weight_names`."""
    table = Table(title=f"the windows of one forward: mode {signature['mode']}, tokens {signature['num_tokens']}")
    table.add_column("after\ncollective", justify="right")
    table.add_column("window\nMiB", justify="right")
    table.add_column("budget\nMiB", justify="right")
    table.add_column("form")
    table.add_column("weights in reading order", overflow="fold")
    windows = signature["windows"]
    num_left_out = 0 if max_windows is None else max(0, len(windows) - max_windows)
    for window in windows[: len(windows) - num_left_out]:
        index = window["collective_index"]
        table.add_row(
            f"{index} {window['kind']}",
            mib(window["window_bytes"]),
            mib(window["budget_bytes"]) if window["budget_bytes"] else "off",
            window["form"],
            ", ".join(names.get(index, [])),
        )
    if num_left_out:
        table.add_row("...", "", "", "", f"and {num_left_out} more windows")
    return table


class Report:
    """A snapshot of a prefetcher. `print(report)` and `console.print(report)` both show it."""

    def __init__(self, prefetcher: Prefetcher) -> None:
        status = prefetcher.status()
        parts: list[RenderableType] = []
        if status["reason"]:
            parts.append(Text(f"prefetching is off: {status['reason']}"))
        if status["signatures"]:
            parts.append(signature_table(status))
        elif not status["reason"]:
            parts.append(Text("no forward seen yet: run the model once in eager mode"))
        largest = largest_signature(status)
        if largest is not None:
            parts.append(window_table(largest, weight_names(prefetcher, largest)))
        for num_tokens, ratio in status["unwatched"].items():
            parts.append(
                Text(
                    f"eager forwards of {num_tokens} tokens run without windows: watching them took {ratio:.2f} of the "
                    "time without"
                )
            )
        if status["skipped_weights"]:
            parts.append(Text("not planned, only rows are read: " + ", ".join(status["skipped_weights"])))
        if status["routed_weights"]:
            parts.append(Text("not planned, a router chooses what is read: " + fold(status["routed_weights"])))
        if status["hidden_weights"]:
            hidden = status["hidden_weights"]
            parts.append(
                Text(
                    f"not planned, torch.compile hides who reads it ({mib(sum(hidden.values()))} MiB; compile with "
                    f"backend='dsv41' to plan it): {fold(hidden)}"
                )
            )
        self._group = Group(*parts)

    def __rich__(self) -> Group:
        return self._group

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDTH, color_system=None, force_terminal=False)
        console.print(self._group)
        return console.file.getvalue().rstrip()

    __repr__ = __str__
