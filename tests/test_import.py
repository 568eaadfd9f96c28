"""Importing: no CUDA, one copy of the library, and clear words when it is missing or stale."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dsv41_l2pf
from dsv41_l2pf import ops

ROOT = Path(__file__).resolve().parent.parent


def run_python(code: str, *paths: Path, **environment: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths or (ROOT,))), **environment}
    # Not here: `python -c` puts the working directory, and so this checkout, before PYTHONPATH.
    return subprocess.run([sys.executable, "-c", code], cwd="/", env=env, capture_output=True, text=True, timeout=120)


def copy_package(folder: Path, library: Path | None = ops.LIBRARY, version: str | None = None) -> Path:
    shutil.copytree(ops.PACKAGE, folder / "dsv41_l2pf", ignore=shutil.ignore_patterns("lib", "__pycache__"))
    text = (ROOT / "pyproject.toml").read_text()
    if version:
        text = text.replace(f'version = "{ops.package_version()}"', f'version = "{version}"')
    (folder / "pyproject.toml").write_text(text)
    if library:
        (folder / "dsv41_l2pf" / "lib").mkdir()
        shutil.copy(library, folder / "dsv41_l2pf" / "lib")
    return folder


def test_what_it_exports():
    assert {"attach", "Prefetcher", "Config", "status", "__version__"} <= set(dsv41_l2pf.__all__)
    assert all(hasattr(dsv41_l2pf, name) for name in dsv41_l2pf.__all__)


def test_one_version():
    assert dsv41_l2pf.__version__ == ops.package_version() == dsv41_l2pf.status()["version"]
    assert f'version = "{dsv41_l2pf.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_importing_initialises_no_cuda_and_reads_no_setting():
    code = "import dsv41_l2pf, torch; assert not torch.cuda.is_initialized(); print(dsv41_l2pf.status()['devices'])"
    result = run_python(code, DSV41_L2_PREFETCH="nonsense")
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr


def test_importing_needs_no_plotting_and_no_models():
    code = "import dsv41_l2pf, sys; print([m for m in ('matplotlib', 'transformers', 'typer') if m in sys.modules])"
    assert run_python(code).stdout.strip() == "[]"


def test_loading_again_is_fine():
    assert ops.load() == dsv41_l2pf.__version__


def test_a_second_copy_is_refused_and_both_are_named(tmp_path):
    other = Path(shutil.copy(ops.LIBRARY, tmp_path))
    with pytest.raises(ImportError) as error:
        ops.load(other)
    assert str(other) in str(error.value) and str(ops.LIBRARY) in str(error.value)


def test_a_second_copy_of_the_package_is_refused(tmp_path):
    copy_package(tmp_path)
    code = f"""
import sys, dsv41_l2pf
for name in [name for name in sys.modules if name.startswith("dsv41_l2pf")]: del sys.modules[name]
sys.path.insert(0, {str(tmp_path)!r})
import dsv41_l2pf
"""
    result = run_python(code)
    assert result.returncode == 1
    assert f"ImportError: dsv41_l2pf: torch.ops.dsv41 is already registered by {ops.LIBRARY}" in result.stderr
    assert str(tmp_path / "dsv41_l2pf" / "lib" / ops.LIBRARY.name) in result.stderr


def test_a_missing_library_says_what_to_run(tmp_path):
    result = run_python("import dsv41_l2pf", copy_package(tmp_path, library=None))
    assert result.returncode == 1
    assert "libdsv41_l2pf.so is missing: run `make build`" in result.stderr.splitlines()[-1]


def test_a_stale_library_is_refused_with_both_versions(tmp_path):
    result = run_python("import dsv41_l2pf", copy_package(tmp_path, version="9.8.7"))
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert "the package is 9.8.7" in last and f" is {dsv41_l2pf.__version__}: run `make build`" in last


@pytest.mark.parametrize("name", ops.MODEL_OPS)
def test_torch_compile_keeps_every_operator(name):
    graph = torch.fx.Graph()
    node = graph.call_function(getattr(torch.ops.dsv41, name).default, ())
    graph.output(None)
    assert node.is_impure()


def test_status_command():
    result = subprocess.run(
        [sys.executable, "-m", "dsv41_l2pf", "status", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert f'"version": "{dsv41_l2pf.__version__}"' in result.stdout
