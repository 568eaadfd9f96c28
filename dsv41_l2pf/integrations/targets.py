"""One table: every function of an engine that is hooked, with its parameters as seen in the engine's recorded version.

It decides at install what is hooked, it serves `doctor`, and the tests hold it against the real packages. Nothing here
imports an engine: modules that are not loaded are read as source.
"""

from __future__ import annotations

import ast
import importlib.machinery
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Target:
    """One hooked function.

    part: what is switched off when the target is not as expected. role: which wrapper the integration puts around it.
    module, name: where it is; `name` may be Class.method. parameters: as in the recorded version, without stars.
    uses: how many leading parameters the wrapper relies on; what follows is passed through, so it may change.
    optional: other supported versions of the engine lack it, which is no problem.
    """

    part: str
    role: str
    module: str
    name: str
    parameters: tuple[str, ...]
    uses: int
    optional: bool = False

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Finding:
    """What a target looks like here. problem: why it cannot be hooked, or ''. changed: other parameters than recorded."""

    target: Target
    parameters: tuple[str, ...] | None
    problem: str = ""

    @property
    def changed(self) -> bool:
        return self.parameters is not None and self.parameters != self.target.parameters


def version_of(distribution: str) -> str:
    """The installed version, or 'of unknown version' (a source tree on PYTHONPATH)."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def owner_of(module: ModuleType, name: str) -> tuple[Any, str]:
    """The object that holds the last component of `name`, and that component. Raises AttributeError."""
    owner: Any = module
    *outer, last = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    getattr(owner, last)
    return owner, last


def parameters_of(function: Any) -> tuple[str, ...] | None:
    """Names of the parameters of a live function, None when it has no readable signature (a custom-operator object)."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None


def _package_folder(package: str, root: Path | None) -> Path | None:
    if root is not None:
        return root / package
    # PathFinder of the top level alone: find_spec of a submodule would import its parents.
    spec = importlib.machinery.PathFinder.find_spec(package)
    locations = None if spec is None else spec.submodule_search_locations
    return Path(list(locations)[0]) if locations else None


@cache
def source_of(module: str, root: Path | None = None) -> Path | None:
    """The source file of a module that need not be importable; `root`: a folder with unpacked wheels."""
    package, *rest = module.split(".")
    folder = _package_folder(package, root)
    if folder is None:
        return None
    base = folder.joinpath(*rest)
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _scope(text: str, start: int, end: int, part: str, kind: str) -> re.Match | None:
    return re.compile(rf"^([ \t]*)(?:async[ ]+)?{kind}[ ]+{part}\b", re.MULTILINE).search(text, start, end)


def _header(text: str) -> str:
    """The text of a definition up to the colon that opens its body."""
    depth = 0
    lines: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
            if token.string == ":" and depth == 0:
                return "".join([*lines, token.line[: token.end[1]]])
        if token.type in (tokenize.NEWLINE, tokenize.NL):
            lines.append(token.line)
    return ""


def source_parameters(path: Path, name: str) -> tuple[str, ...] | None:
    """The parameters of the function `name` in a source file, None when the file does not define it.

    Only the definition's header is parsed: parsing whole model files takes seconds.
    """
    text = _text(path)
    start, end = 0, len(text)
    *classes, function = name.split(".")
    for part in classes:
        found = _scope(text, start, end, part, "class")
        if found is None:
            return None
        start = found.end()
        after = re.compile(rf"^[ \t]{{0,{len(found[1])}}}[A-Za-z@_]", re.MULTILINE).search(text, start, end)
        end = after.start() if after else end
    found = _scope(text, start, end, function, "def")
    if found is None:
        return None
    header = _header(text[found.start() : end]).lstrip()
    node: Any = ast.parse(f"{header} pass").body[0]
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return tuple(argument.arg for argument in named if argument is not None)


def look_at(target: Target, root: Path | None = None) -> Finding:
    """Compares one target with the loaded module, or with the source when it is not loaded or `root` is given."""
    module = None if root is not None else sys.modules.get(target.module)
    if module is not None:
        try:
            owner, last = owner_of(module, target.name)
        except AttributeError:
            return Finding(target, None, f"{target.path} is missing")
        found = parameters_of(getattr(owner, last))
        if found is None:
            return Finding(target, None, f"{target.path} has no readable signature")
    else:
        source = source_of(target.module, root)
        if source is None:
            return Finding(target, None, f"{target.module} is missing")
        found = source_parameters(source, target.name)
        if found is None:
            return Finding(target, None, f"{target.path} is missing")
    if found[: target.uses] != target.parameters[: target.uses]:
        expected, got = ", ".join(target.parameters[: target.uses]), ", ".join(found)
        return Finding(target, found, f"{target.path}: expected parameters ({expected}, ...), got ({got})")
    return Finding(target, found)


def look_at_all(targets: Iterable[Target], root: Path | None = None) -> list[Finding]:
    """One finding a target; optional targets that are missing are left out."""
    findings = [look_at(target, root) for target in targets]
    return [f for f in findings if not (f.problem and f.target.optional and f.parameters is None)]
