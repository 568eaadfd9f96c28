"""`bench`: a short measurement on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .output import FINDING, AsJson, console_for, drawable, finish, need_packages, no_gpu_reason, print_json

Stage = Callable[[str, float], None]
_PICTURE = Path("dsv41_l2pf_bench.png")


def bench(
    output: Annotated[Path, typer.Option(help="Where the picture goes: .png or .svg.", callback=drawable)] = _PICTURE,
    as_json: AsJson = False,
) -> None:
    """Measures for about a minute: a decode step on the GPU, off and on in turns; without one, the operators' cost."""
    console = console_for(as_json)
    reason = no_gpu_reason()
    if reason:
        found, has_finding = _on_cpu(console, output, reason), False
    else:
        need_packages("transformers")
        found, has_finding = _on_gpu(console, output)
    console.print(f"picture: {output}", markup=False, soft_wrap=True)
    if as_json:
        print_json({**found, "picture": str(output)})
    finish(has_finding)


@contextmanager
def _progress(console: Console) -> Iterator[Stage]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=1.0)
        yield lambda text, share: progress.update(task, description=text, completed=share)


def _on_cpu(console: Console, output: Path, reason: str) -> dict:
    from ..bench.cpu import NUM_ROUNDS, host_costs_us
    from ..pictures.costs import draw_costs

    num_done = 0
    with _progress(console) as stage:

        def advance() -> None:
            nonlocal num_done
            num_done += 1
            stage("host time of the operators", num_done / NUM_ROUNDS)

        costs = host_costs_us(advance)
    table = Table(title="what the operators cost the host")
    table.add_column("call")
    table.add_column("us", justify="right")
    for name, cost_us in costs.items():
        table.add_row(name, f"{cost_us:.2f}")
    console.print(table)
    console.print(f"no decode step was timed: {reason}", soft_wrap=True)
    draw_costs(output, "what the operators cost the host", costs)
    return {"device": "cpu", "no_gpu": reason, "host_us": costs}


def _on_gpu(console: Console, output: Path) -> tuple[dict, bool]:
    import torch

    from ..bench.gpu import measure
    from ..demo.arms import spread
    from ..demo.gpu_model import num_layers_that_fit
    from ..demo.picture import draw

    name = torch.cuda.get_device_name()
    num_layers = num_layers_that_fit()
    if num_layers == 0:
        console.print(f"{name}: expected free memory for two decoder layers (about 2 GiB), got less")
        raise typer.Exit(FINDING)
    with _progress(console) as stage:
        measured = measure(num_layers, stage)
    ratios = measured.ratios()
    table = Table(title=f"one captured decode step on {name}, emulated peers")
    for column in ("arm", "step us: median (quartiles)", "of off"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for arm, times in measured.arms.items():
        table.add_row(arm, str(spread(times)), f"{ratios[arm]:.4f}")
    console.print(table)
    console.print(f"tuned: {measured.reason}")
    if not measured.tokens_equal:
        console.print("finding: the tokens differ with and without prefetching", style="bold")
    title = f"{name}: one TP4 rank of a Llama-70B-class model, captured decode"
    draw(output, title, measured.windows, measured.arms, unit="us")
    found = {
        "device": name,
        "step_us": measured.arms,
        "ratio_to_off": ratios,
        "tokens_equal": measured.tokens_equal,
        "tuned": measured.reason,
    }
    return found, not measured.tokens_equal
