"""`report FILE`: a saved file, readable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .output import AsJson, Picture, console_for, finish, print_json


def report(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Tunings, a calibration, or a status.")],
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Shows saved tunings, a calibration file, or the saved JSON of a `status()`."""
    from ..saved import read_document

    try:
        document = read_document(file)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from None
    if picture is not None:
        if document.calibration is None:
            raise typer.BadParameter(f"expected a calibration, got {document.kind}", param_hint="--picture")
        from ..pictures.fill import draw_fill

        draw_fill(picture, document.calibration)
    if as_json:
        print_json({"kind": document.kind, "findings": document.findings, "content": document.content})
    else:
        console = console_for(as_json)
        console.print(document.readable)
        for finding in document.findings:
            console.print(f"finding: {finding}", style="bold", markup=False)
    finish(bool(document.findings))
