"""What the build files decide: CUDA architectures, missing tools, and that a GPU test cannot be skipped by accident."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command, cwd=ROOT, **environ):
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True
    )


def gencode(tmp_path, archs: str):
    script = tmp_path / "gencode.cmake"
    script.write_text(
        f'include({ROOT}/cmake/Gencode.cmake)\nl2pf_gencode(flags "{archs}")\nmessage(STATUS "${{flags}}")\n'
    )
    return run("cmake", "-P", script)


@pytest.mark.parametrize(
    ("archs", "codes"),
    [
        ("80-real", ["sm_80"]),
        ("90-virtual", ["compute_90"]),
        ("120", ["sm_120", "compute_120"]),
        ("90-real;121-real;90-virtual", ["sm_90", "sm_121", "compute_90"]),
        ("121f-real", ["sm_121f"]),  # spellings that CMake 3.25 refuses
        ("120a-real", ["sm_120a"]),
        ("999-real", ["sm_999"]),  # nvcc decides, not we
    ],
)
def test_gencode(tmp_path, archs, codes):
    flags = gencode(tmp_path, archs).stdout.removeprefix("-- ").strip().split(";")
    assert [flag.split("code=")[-1] for flag in flags] == codes
    for flag, code in zip(flags, codes, strict=True):
        assert flag.startswith(f"-gencode=arch={code.replace('sm_', 'compute_')},")


@pytest.mark.parametrize("arch", ["sm_90", "12.1", "9.0+PTX", "90-fake"])
def test_gencode_refuses_what_it_cannot_read(tmp_path, arch):
    result = gencode(tmp_path, arch)
    assert result.returncode != 0
    assert f'got "{arch}"' in " ".join(result.stderr.split())


@pytest.fixture
def few_tools(tmp_path):
    """A PATH with a shell and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("bash", "sed", "sort", "head"):
        (folder / tool).symlink_to(shutil.which(tool))
    return str(folder)


def test_each_missing_tool_is_one_line_with_its_package(few_tools):
    result = run(shutil.which("bash"), ROOT / "tools/check_tools.sh", "test", PATH=few_tools)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert [line.split()[-1].rstrip(")") for line in lines] == ["python3", "g++", "cmake", "make", "binutils"]
    assert all(line.startswith("missing: ") for line in lines)


def test_packages_to_install_are_listed_for_a_script(few_tools):
    result = run(shutil.which("bash"), ROOT / "tools/check_tools.sh", "--packages", "test", PATH=few_tools)
    assert (result.returncode, result.stdout.split()) == (0, ["python3", "g++", "cmake", "make", "binutils"])


@pytest.mark.parametrize("required", ["0", "1"])
def test_a_skipped_gpu_test_fails_where_cuda_is_required(tmp_path, required):
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = cuda: needs a GPU\n")
    (tmp_path / "test_one.py").write_text(
        "import pytest\n"
        "@pytest.mark.cuda\ndef test_gpu(): pytest.skip('no fast GPU')\n"
        "def test_other(): pytest.skip('not today')\n"
    )
    (tmp_path / "test_module.py").write_text(
        "import pytest\npytestmark = pytest.mark.cuda\npytest.importorskip('not_there')\n"
    )
    result = run(
        sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", cwd=tmp_path,
        L2PF_REQUIRE_CUDA=required, CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip
    verdict = result.stdout.splitlines()[-1]
    if required == "1":
        assert verdict.startswith("1 skipped, 2 errors"), result.stdout
    else:
        assert verdict.startswith("3 skipped"), result.stdout
