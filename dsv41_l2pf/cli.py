"""The command line: `python -m dsv41_l2pf demo` and `python -m dsv41_l2pf status`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from . import status as library_status

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Hides weight loading behind collectives.")


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("dsv41_l2pf_demo.png"),
) -> None:
    """Runs the main job and shows it: on the GPU where there is one, else on two gloo ranks."""
    console = Console()
    has_gpu = torch.cuda.is_available()
    if has_gpu and library_status()["cuda_built"]:
        from .demo import gpu as chosen
    else:
        from .demo import cpu as chosen

        if has_gpu:
            console.print("there is a GPU, but the library was built without CUDA: `make gpu` builds it with CUDA")
    raise typer.Exit(chosen.run(output, console))


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON, for programs.")] = False,
) -> None:
    """Prints what the library knows: version, forms and devices."""
    found = library_status()
    if as_json:
        typer.echo(json.dumps(found))
    else:
        Console().print_json(data=found)
