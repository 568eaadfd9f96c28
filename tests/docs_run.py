"""Runs the blocks of one page: python docs_run.py PAGE.md, in the folder that the page's commands work in."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
from pathlib import Path

from docs_pages import Block, blocks_of


def run_python(block: Block, page: Path, names: dict) -> str:
    """Runs a block with the lines of its page in tracebacks; returns what it prints."""
    if block.note == "given":
        given = importlib.import_module("docs_given")
        names.update({name: getattr(given, name)() for name in block.detail.split(", ")})
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)  # noqa: S102  the page is ours
    return printed.getvalue()


def run_shell(block: Block, page: Path) -> str:
    """Runs a block as a script that stops at the first failure; returns what it prints."""
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{page}:{block.line}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def run_console(block: Block, page: Path) -> str:
    """Runs the command of a console block, which may end with a finding, and compares; returns what it prints."""
    command, _, expected = block.text.removeprefix("$ ").partition("\n")
    done = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, text=True)
    compare(done.stdout, expected, block, page)
    return done.stdout


def compare(printed: str, expected: str, block: Block, page: Path) -> None:
    """Ends the run unless both are the same but for spaces at the ends of lines."""
    got, wanted = ([line.rstrip() for line in text.strip().splitlines()] for text in (printed, expected))
    if got != wanted:
        raise SystemExit(f"{page}:{block.line}: expected\n{expected}\ngot\n{printed}")


def run(page: Path) -> None:
    """Runs every block of `page` from top to bottom, and holds what they print against the page."""
    names: dict = {"__name__": "__main__"}
    printed = ""
    for block in blocks_of(page):
        if block.note == "file":
            Path(block.detail).write_text(block.text)
        elif block.note == "output":
            compare(printed, block.text, block, page)
        elif block.note == "not run":
            continue
        elif block.language == "python":
            printed = run_python(block, page, names)
        elif block.is_code:
            printed = run_console(block, page) if block.language == "console" else run_shell(block, page)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # a process group that a page leaves open can abort in its static destructors
