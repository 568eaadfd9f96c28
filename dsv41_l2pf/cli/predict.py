"""`predict`: the paper model, for a GPU that is not here."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from ..predict import GPUS, MIB, WINDOWS_US, Gpu, prediction_table
from .output import AsJson, Picture, console_for, print_json


def _chosen(name: str | None) -> tuple[Gpu, ...]:
    known = {gpu.name.lower(): gpu for gpu in GPUS}
    if name is None:
        return GPUS
    if name.lower() not in known:
        names = ", ".join(gpu.name for gpu in GPUS)
        raise typer.BadParameter(f"expected one of {names}, got {name}", param_hint="--gpu")
    return (known[name.lower()],)


def _require_positive(option: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise typer.BadParameter(f"expected a number > 0, got {value:g}", param_hint=option)


def predict(
    gpu: Annotated[str | None, typer.Option(help="One GPU: " + ", ".join(gpu.name for gpu in GPUS) + ".")] = None,
    window_us: Annotated[list[float] | None, typer.Option(help="How long the collective waits; repeatable.")] = None,
    weight_mib: Annotated[float, typer.Option(help="Weights that are read after the collective.")] = 16.0,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Predicts on paper what one window saves, from public figures of GPUs."""
    gpus = _chosen(gpu)
    windows_us = tuple(sorted(set(window_us or WINDOWS_US)))
    for value in windows_us:
        _require_positive("--window-us", value)
    _require_positive("--weight-mib", weight_mib)
    weight_bytes = int(weight_mib * MIB)
    if picture is not None:
        from ..pictures.saving import draw_saving

        draw_saving(picture, gpus, weight_bytes, windows_us)
    if not as_json:
        console_for(as_json).print(prediction_table(weight_bytes, windows_us, gpus))
        return
    rows = [
        {
            "gpu": entry.name,
            "window_us": length_us,
            "saved_low_us": entry.low.saved_us(weight_bytes, length_us),
            "saved_high_us": entry.high.saved_us(weight_bytes, length_us),
        }
        for entry in gpus
        for length_us in windows_us
    ]
    basis = {entry.name: entry.basis for entry in gpus}
    print_json({"weight_bytes": weight_bytes, "predictions": rows, "basis": basis})
