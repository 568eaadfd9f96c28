"""README.md and docs/*.md: every block runs as it stands or says why it cannot; every relative link leads somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from docs_pages import PAGES, ROOT, blocks_of, relative_links_of, resolves
from reasons import cpp_parts, python_parts

import dsv41_l2pf  # noqa: F401  (registers the operators)

LANGUAGES = {"python", "shell", "console", "text", "json"}
NOT_RUN = [(page, block) for page in PAGES for block in blocks_of(page) if block.note == "not run"]
WITH_CODE = [page for page in PAGES if any(block.is_code and block.note != "not run" for block in blocks_of(page))]


def by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def executable(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder like a built checkout, in which files can be made. Its venv is the python that runs the tests."""
    for path in ROOT.iterdir():
        if path.name not in (".git", "tools"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "tools").mkdir()
    executable(tmp_path / "tools" / "venv.sh", f'echo "{sys.executable}"')
    return tmp_path


@pytest.fixture
def environment(tmp_path_factory) -> dict[str, str]:
    """An installed package, on a machine without a GPU."""
    commands = tmp_path_factory.mktemp("bin")
    executable(commands / "python3", f'exec "{sys.executable}" "$@"')
    executable(commands / "dsv41-l2pf", f'exec "{sys.executable}" -m dsv41_l2pf "$@"')
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DSV41_")}
    return {
        **inherited,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.parametrize("page", WITH_CODE, ids=by_name)
def test_blocks_run(page, checkout, environment):
    command = [sys.executable, str(ROOT / "tests" / "docs_run.py"), str(page)]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "block",
    [pytest.param(b, marks=pytest.mark.skip(reason=b.detail), id=f"{by_name(p)}:{b.line}") for p, b in NOT_RUN],
)
def test_blocks_that_cannot_run_here(block):
    """Skipped, so that pytest's summary lists them with their reasons."""


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_blocks_say_what_they_are(page):
    blocks = blocks_of(page)
    assert page.read_text().count("\n```") == 2 * len(blocks)
    assert {block.language for block in blocks} <= LANGUAGES
    assert all(block.detail for block in blocks if block.note not in ("", "output"))


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_relative_links_resolve(page):
    assert [link for link in relative_links_of(page) if not resolves(page, link)] == []


def test_every_page_is_in_the_index():
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target).resolve() for target in relative_links_of(index)}
    assert set(PAGES) - {index, ROOT / "README.md"} <= listed


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def test_every_operator_is_on_its_page_with_its_schema():
    page = (ROOT / "docs" / "operators.md").read_text()
    listed = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("dsv41::")]
    registered = [str(getattr(torch.ops.dsv41, name.removeprefix("dsv41::")).default._schema) for name in names]
    assert sorted(listed) == sorted(registered)


def test_every_reason_in_the_sources_is_in_troubleshooting():
    page = " ".join((ROOT / "docs" / "troubleshooting.md").read_text().split())
    reasons = cpp_parts() | python_parts()
    assert "mismatch: captured" in reasons and "windows became nodes" in reasons and "off by tune:" in reasons
    assert sorted(part for part in reasons if part not in page) == []


def test_troubleshooting_has_no_reason_that_is_gone():
    rows = re.findall(r"^\| `(.+?)` ", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    files = [path for folder in ("csrc", "dsv41_l2pf") for path in (ROOT / folder).rglob("*.[cp][py]*")]
    sources = [path.read_text() for path in files if path.suffix in (".cpp", ".py")]
    text = re.sub(r'"\s*\n\s*f?"|`', "", "".join(sources))
    parts = [part.strip(" ;:,()") for row in rows for part in re.split(r"\.\.\.|\bN\b|[;:] |[()]", row)]
    assert len(rows) > 40
    assert [part for part in parts if part not in text] == []
