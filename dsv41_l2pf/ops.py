"""Loads the library that registers `torch.ops.dsv41.*`, and tells torch.compile how its operators behave."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import torch

PACKAGE = Path(__file__).resolve().parent
LIBRARY = PACKAGE / "lib" / "libdsv41_l2pf.so"
DISTRIBUTION = "dsv41-l2pf"

TENSOR_OPS = (
    "l2_prefetch",
    "l2_join",
    "window_begin",
    "window_end",
    "join_windows",
    "collective_begin",
    "collective_end",
    "record_weight",
    "emulated_all_reduce",
)
MODEL_OPS = (*TENSOR_OPS, "begin_forward", "end_forward", "status")


def package_version() -> str:
    """The version of this package: of pyproject.toml beside a checkout, else of the installed distribution."""
    pyproject = PACKAGE.parent / "pyproject.toml"
    if pyproject.is_file():
        # Not tomllib: Python 3.10 has none.
        fields = dict(re.findall(r'^(name|version) = "(.+)"$', pyproject.read_text(), re.MULTILINE))
        if fields.get("name") == DISTRIBUTION:
            return fields["version"]
    return importlib.metadata.version(DISTRIBUTION)


def load(library: Path = LIBRARY) -> str:
    """Registers the operators once in this process and returns the version of library and package.

    Raises ImportError when the library is missing, when another copy of it is already loaded, and when its version is
    not the package's.
    """
    expected = package_version()
    loaded = _loaded_library()
    if loaded is None:
        if not library.is_file():
            raise ImportError(f"dsv41_l2pf: {library} is missing: run `make build` in the checkout, or install a wheel")
        torch.ops.load_library(str(library))
        _check_version(library, expected)
        _describe_ops()
    elif loaded != library.resolve():
        raise ImportError(
            f"dsv41_l2pf: torch.ops.dsv41 is already registered by {loaded}, so {library} cannot be loaded too: "
            "keep one copy of the package in a process"
        )
    return expected


def _check_version(library: Path, expected: str) -> None:
    got = json.loads(torch.ops.dsv41.status())["version"]
    if got != expected:
        raise ImportError(f"dsv41_l2pf: the package is {expected} but {library} is {got}: run `make build` again")


def _loaded_library() -> Path | None:
    """The library of ours that this process maps; torch itself does not say who registered an operator."""
    if not hasattr(torch.ops.dsv41, "status"):
        return None
    paths = {Path(path).resolve() for path in torch.ops.loaded_libraries if Path(path).name == LIBRARY.name}
    return paths.pop() if paths else Path("a library unknown to torch.ops.load_library")


def _returns_nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _describe_ops() -> None:
    for name in TENSOR_OPS:
        torch.library.register_fake(f"dsv41::{name}", _returns_nothing)
    for name in MODEL_OPS:
        # torch.compile deletes an operator without outputs unless it is in this set.
        torch.fx.node.has_side_effect(getattr(torch.ops.dsv41, name).default)
