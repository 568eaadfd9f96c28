"""What the commands have in common: options, exit status, and where text and JSON go."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from ..pictures import suffix_problem

FINE, FINDING, USAGE = 0, 1, 2

AsJson = Annotated[bool, typer.Option("--json", help="One line of JSON, for programs.")]


def writable(path: Path) -> Path:
    """A file to write, checked before the work for it is done. Raises typer.BadParameter without its folder."""
    if path.is_dir() or not path.parent.is_dir():
        raise typer.BadParameter(f"expected a file in a folder that exists, got {path}")
    return path


def drawable(path: Path | None) -> Path | None:
    """A picture to write, or None. Raises typer.BadParameter; ends the command when matplotlib is missing."""
    if path is None:
        return None
    problem = suffix_problem(path)
    if problem:
        raise typer.BadParameter(problem)
    need_packages("matplotlib")
    return writable(path)


Picture = Annotated[Path | None, typer.Option(help="Draw a picture too: a .png or .svg file.", callback=drawable)]


def need_packages(*names: str) -> None:
    """Ends the command as wrong usage, with what to install, unless every package of `names` is there."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        typer.echo(f"this needs {', '.join(missing)}: pip install {' '.join(missing)}", err=True)
        raise typer.Exit(USAGE)


def console_for(as_json: bool) -> Console:
    """Where people read: standard output, or standard error when a program reads standard output."""
    return Console(stderr=as_json)


def print_json(found: Any) -> None:
    """One line on standard output."""
    typer.echo(json.dumps(found))


def finish(has_finding: bool) -> NoReturn:
    """Ends the command with its exit status."""
    raise typer.Exit(FINDING if has_finding else FINE)


def fail(message: str, as_json: bool) -> NoReturn:
    """Ends the command with one finding, which is all that it has to say."""
    if as_json:
        print_json({"error": message})
    else:
        typer.echo(message)
    raise typer.Exit(FINDING)


def no_gpu_reason() -> str:
    """Why this process cannot prefetch on a GPU, or ''."""
    import torch

    from .. import status as library_status
    from ..doctor.gpus import driver_release

    if not torch.cuda.is_available():
        if not torch.backends.cuda.is_built():
            return f"torch {torch.__version__} was built without CUDA"
        driver = driver_release()
        beside = f", though driver {driver} is loaded" if driver else ""
        return f"there is no GPU that torch {torch.__version__} can use{beside}"
    if not library_status()["cuda_built"]:
        return "there is a GPU, but the library was built without CUDA: install a wheel, or `make gpu` in a checkout"
    return ""
