"""report(): the same tables for print and for rich, with the names of the weights."""

import pytest
from rich.console import Console
from three_linears import HIDDEN, Model, X

from dsv41_l2pf import Config, attach
from dsv41_l2pf.report import brace, window_table


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def prefetcher(model):
    prefetcher = attach(model, Config())
    yield prefetcher
    prefetcher.detach()


def test_the_report_names_weights_and_prints_everywhere(model, prefetcher, capsys):
    model(X), model(X)
    report = prefetcher.report()
    print(report)
    printed = capsys.readouterr().out
    assert "b.weight" in printed and "c.weight" in printed and "planned" in printed
    assert f"{2 * HIDDEN * HIDDEN * 4 / 2**20:.2f}" in printed
    console = Console(width=120, color_system=None)
    console.print(report)
    assert capsys.readouterr().out.strip() == printed.strip()


@pytest.mark.parametrize(("max_windows", "num_rows", "said"), [(None, 3, ""), (3, 3, ""), (1, 2, "and 2 more windows")])
def test_the_table_of_a_demo_ends_with_how_many_windows_are_left_out(max_windows, num_rows, said):
    window = {"kind": "all_reduce", "window_bytes": 2 << 20, "budget_bytes": 1 << 20, "form": "load"}
    windows = [{**window, "collective_index": i} for i in range(3)]
    table = window_table({"mode": "decode", "num_tokens": 1, "windows": windows}, {0: ["w"]}, max_windows)
    assert table.row_count == num_rows
    last = [list(column.cells)[-1] for column in table.columns]
    assert last[-1] == said and last[0] == ("..." if said else "2 all_reduce")


def test_the_report_before_any_forward(prefetcher):
    assert str(prefetcher.report()) == "no forward seen yet: run the model once in eager mode"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a.w"], "a.w"),
        (["l.0.x.w", "l.0.y.z.w"], "l.0.{x, y.z}.w"),
        (["n.w", "h.w"], "{n, h}.w"),
        (["x.w", "x.w.s"], "x.{w, w.s}"),
        (["a", "b"], "{a, b}"),
    ],
)
def test_brace(names, text):
    assert brace(names) == text
