"""Finds in the sources what the library says of itself: reasons in `status` and reports, strict errors, warnings.

A reason is known by its fixed parts: "captured {n} tokens, mode {mode}" has `captured` and `tokens, mode`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docs_pages import ROOT

# Assigned or thrown; or returned by the short functions that choose one, but not from the cases of a switch.
_CPP_STATEMENT = re.compile(
    r'(?:reason_ =|throw (?:Backend|Strict)Error\(|^  (?:if .*\) )?return ")[^;]*;',
    re.MULTILINE,
)
_CPP_FILES = ("signature.cpp", "prefetcher.cpp", "cpu/cpu_backend.cpp", "cuda/cuda_backend.cpp")
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SAYING = {"switch_off", "Outcome", "Finding", "Text", "warning", "error", "exception"}
_HOLDING = re.compile(r"(^|_)(reason|misfits|problem)$|^off$")
_TELLING = {"_misfit", "summary", "_announce"}  # functions that make a reason, or a line of an engine's log
# What these print is for those who look at it, and says itself what to do.
_COMMANDS = {"cli", "demo", "doctor", "pictures", "saved", "trace"}
_FIELD = re.compile(r"%[sd]|%\w*:%d")


def _fixed(text: str) -> Iterator[str]:
    for part in _FIELD.split(text):
        part = " ".join(part.split()).strip("(){} ")
        is_field_name = re.fullmatch(r"\w*_\w*", part)
        if len(re.findall(r"[a-z]", part)) >= 4 and not is_field_name:
            yield part


def cpp_parts() -> set[str]:
    """The fixed parts of the C++ core's reasons and of what latches it off."""
    parts: set[str] = set()
    for name in _CPP_FILES:
        for statement in _CPP_STATEMENT.finditer((ROOT / "csrc" / name).read_text()):
            for literal in _LITERAL.findall(statement[0]):
                parts.update(_fixed(literal))
    return parts


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return getattr(node, "attr", getattr(node, "id", ""))


def _said(tree: ast.Module) -> Iterator[ast.AST]:
    """The expressions that end up in a reason."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "reason":
            yield node.value
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(_HOLDING.search(_name(target)) for target in targets):
                yield node.value
        elif isinstance(node, ast.Call) and _name(node.func) in _SAYING:
            yield from node.args
        elif isinstance(node, ast.FunctionDef) and node.name in _TELLING:
            told = (child.value for child in ast.walk(node) if isinstance(child, (ast.Return, ast.Assign, ast.AugAssign)))
            yield from (value for value in told if value is not None)


def _constants(trees: list[ast.Module]) -> dict[str, str]:
    return {
        _name(node.targets[0]): node.value.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def python_parts() -> set[str]:
    """The fixed parts of the Python package's reasons, warnings and errors in the log."""
    package = ROOT / "dsv41_l2pf"
    files: list[Path] = [file for file in package.rglob("*.py") if file.relative_to(package).parts[0] not in _COMMANDS]
    trees = [ast.parse(file.read_text()) for file in files]
    constants = _constants(trees)
    parts: set[str] = set()
    for expression in (said for tree in trees for said in _said(tree)):
        for node in ast.walk(expression):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts.update(_fixed(node.value))
            elif isinstance(node, ast.Name) and node.id in constants:
                parts.update(_fixed(constants[node.id]))
    return parts
