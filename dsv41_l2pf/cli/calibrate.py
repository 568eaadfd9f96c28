"""`calibrate`: measures a GPU, or shows what was measured."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from .output import AsJson, Picture, console_for, fail, no_gpu_reason, print_json


def calibrate(
    device: Annotated[int | None, typer.Option(min=0, help="Index of the GPU; the current one when left out.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Measure again, whatever an earlier run found.")] = False,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Measures the GPU once, about a second, and shows rates, times and the choice that follows."""
    import torch

    from .. import calibration

    reason = no_gpu_reason()
    if reason:
        fail(f"nothing to calibrate: {reason}", as_json)
    if device is not None and device >= torch.cuda.device_count():
        raise typer.BadParameter(f"expected an index below {torch.cuda.device_count()}, got {device}")
    try:
        found = calibration.calibrate(device, force=force)
    except RuntimeError as error:
        fail(f"the calibration failed: {str(error).splitlines()[0]}", as_json)
    if picture is not None:
        from ..pictures.fill import draw_fill

        draw_fill(picture, found)
    if as_json:
        print_json(asdict(found))
    else:
        from ..saved.calibration_table import calibration_table

        console_for(as_json).print(calibration_table(found))
