"""The wheels of dist/, which `make wheels` builds and then tests with this file; without wheels only the build's library."""

import email
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from libraries import ARCHITECTURES, cuda_architectures, elf_machine, output_of

import dsv41_l2pf

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "dsv41_l2pf/lib/libdsv41_l2pf.so"
WHEELS = sorted((ROOT / "dist").glob("*.whl"))
MACHINES = ("x86_64", "aarch64")
MOST_BYTES = 5 << 20

each_wheel = pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.name)


@pytest.fixture
def library(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(LIBRARY, tmp_path))


def machine_of(wheel: Path) -> str:
    return re.search(r"py3-none-manylinux_2_\d+_(.+)\.whl$", wheel.name)[1]


def test_a_build_has_code_for_every_gpu_that_we_ship_for():
    library = ROOT / LIBRARY
    if not dsv41_l2pf.status()["cuda_built"]:
        pytest.skip("the library was built without CUDA")
    cache = ROOT / "build" / "CMakeCache.txt"
    if cache.is_file() and re.search(r"^L2PF_CUDA_ARCHS:STRING=.+$", cache.read_text(), re.MULTILINE):
        pytest.skip("the build was narrowed by L2PF_CUDA_ARCHS")
    assert cuda_architectures(library) == ARCHITECTURES[elf_machine(library)]


@each_wheel
def test_architectures(wheel, library):
    assert elf_machine(library) == machine_of(wheel)
    assert cuda_architectures(library) == ARCHITECTURES[machine_of(wheel)]


@each_wheel
def test_one_small_stripped_library_without_tests_or_benchmarks(wheel, library):
    assert wheel.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert [name for name in names if name.endswith(".so")] == [LIBRARY]
    assert {name.split("/")[0] for name in names} == {"dsv41_l2pf", f"dsv41_l2pf-{dsv41_l2pf.__version__}.dist-info"}
    assert ".symtab" not in output_of("readelf", "-SW", library)


@each_wheel
def test_tag_is_no_older_than_the_symbols_that_the_library_needs(wheel, library):
    newest = int(re.search(r"manylinux_2_(\d+)_", wheel.name)[1])
    versions = re.findall(r"\bGLIBC_2\.(\d+)", output_of("readelf", "-VW", library))
    assert max(map(int, versions)) <= newest <= 34


@each_wheel
def test_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        folder = f"dsv41_l2pf-{dsv41_l2pf.__version__}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
        entry_points = archive.read(f"{folder}/entry_points.txt").decode()
    assert metadata["Version"] == dsv41_l2pf.__version__
    assert "torch>=2.10" in metadata.get_all("Requires-Dist")
    for group in ("console_scripts", "torch_dynamo_backends", "sglang.srt.plugins", "vllm.general_plugins"):
        assert f"[{group}]" in entry_points


def test_the_changelog_has_an_entry_for_the_version():
    assert f"## {dsv41_l2pf.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("words", [["riscv64"], ["x86_64", "windows"]])
def test_an_unknown_part_is_refused_before_anything_is_built(words):
    result = subprocess.run([ROOT / "tools/wheels.sh", *words], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == f"wheels.sh: expected sdist, x86_64 or aarch64, got {words[-1]}\n"
