"""`demo`: the main job on real input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from .. import status as library_status
from .output import AsJson, console_for, print_json


def demo(
    output: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("dsv41_l2pf_demo.png"),
    as_json: AsJson = False,
) -> None:
    """Runs the main job and shows it: on the GPU where there is one, else on two gloo ranks."""
    console = console_for(as_json)
    has_gpu = torch.cuda.is_available()
    if has_gpu and library_status()["cuda_built"]:
        from ..demo import gpu as chosen
    else:
        from ..demo import cpu as chosen

        if has_gpu:
            console.print("there is a GPU, but the library was built without CUDA: `make gpu` builds it with CUDA")
    exit_status, facts = chosen.run(output, console)
    if as_json:
        print_json(facts)
    raise typer.Exit(exit_status)
