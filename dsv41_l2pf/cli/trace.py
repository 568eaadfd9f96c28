"""`trace FILE`: one step for Perfetto or Chrome."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from .output import AsJson, Picture, console_for, no_gpu_reason, print_json, writable


def trace(
    file: Annotated[Path, typer.Argument(help="The trace to write, JSON.", callback=writable)],
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Times one step of a small model with emulated peers and writes it as a trace, with windows as slices.

    On a GPU the step is replayed from a graph with an event at both ends of every collective; without one it runs in
    eager code and is timed by the host. Open the file in https://ui.perfetto.dev.
    """
    from ..demo.traced_step import traced_step
    from ..trace import write_chrome_trace

    console = console_for(as_json)
    reason = no_gpu_reason()
    title, slices = traced_step(on_gpu=not reason)
    write_chrome_trace(file, slices, {"step": title})
    if picture is not None:
        from ..pictures.timeline import draw_timeline

        draw_timeline(picture, slices, title)
    if as_json:
        print_json({"file": str(file), "step": title, "no_gpu": reason, "slices": [asdict(slice) for slice in slices]})
        return
    num_windows = sum(slice.track == "windows" for slice in slices)
    console.print(f"{title}: {slices[0].duration_us:.0f} us, {num_windows} windows", soft_wrap=True)
    if reason:
        console.print(f"timed in eager code on the CPU: {reason}", soft_wrap=True)
    console.print(f"trace: {file} (open it in https://ui.perfetto.dev)", markup=False, soft_wrap=True)
    if picture is not None:
        console.print(f"picture: {picture}", markup=False, soft_wrap=True)
