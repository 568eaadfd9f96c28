"""Tests against the real engines: they run in an engine's own venv (`make test-engines`), and are not collected elsewhere."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
STUBS = FOLDER / "stubs"


def _installed(distribution: str) -> bool:
    try:
        return bool(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return False


MISSING = [engine for engine in ("sglang", "vllm", "b12x") if not _installed(engine)]
collect_ignore_glob = [f"test_{engine}_*.py" for engine in MISSING]
if not os.environ.get("L2PF_ENGINE_SOURCES"):
    collect_ignore_glob.append("test_sources.py")


def pytest_configure(config):
    if len(MISSING) < 3 and not _installed("dsv41-l2pf"):
        raise pytest.UsageError("expected dsv41-l2pf's metadata on PYTHONPATH: run this through `make test-engines`")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.timeout(1200))  # importing an engine takes its time, twice so on a busy machine


@pytest.fixture(scope="session")
def run_python():
    """Runs a script in a fresh interpreter of this venv and returns its output; raises when it fails.

    `stubs`: with the replacements of GPU-only kernels that tests/engines/stubs holds.
    """

    def run(code: str, *arguments: str, stubs: bool = False, check: bool = True, timeout: float = 600, **environ: str):
        paths = [str(STUBS)] if stubs else []
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ["PYTHONPATH"]]), **environ}
        result = subprocess.run(
            [sys.executable, "-c", code, *arguments], env=env, cwd="/", capture_output=True, text=True, timeout=timeout
        )
        if check and result.returncode != 0:
            raise AssertionError(f"exit status {result.returncode}\n{result.stdout}\n{result.stderr[-8000:]}")
        return result

    return run
