"""The native library asks only for what torch 2.10 promises: it then loads unchanged in every later torch and Python."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

LIBRARY = Path(__file__).resolve().parent.parent / "dsv41_l2pf" / "lib" / "libdsv41_l2pf.so"
TARGET = (2, 10)

# A C function of torch in its header.
SHIM = re.compile(r"\b(?:aoti_)?torch_\w+(?=\s*\()")
# Symbols that a C or C++ runtime versions are its own promise.
RUNTIME_VERSION = re.compile(r"^(GLIBC|GLIBCXX|CXXABI|GCC)_[0-9.]+$")
# Weak hooks that every gcc-built library asks for and may go without.
TOOLCHAIN = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"}
NEEDED = re.compile(
    r"^(libtorch|libtorch_cpu|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-[a-z0-9-]+)\.so(\.\d+)*$"
)


def run(*command) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def shims_at(target: tuple[int, int], header: str) -> set[str]:
    """Names of the C functions that a torch header declares for `target`: it gates the later ones by version."""
    names = set()
    for block in re.split(r"(?=#if TORCH_FEATURE_VERSION >=)", header):
        gate = re.match(r"#if TORCH_FEATURE_VERSION >= TORCH_VERSION_(\d+)_(\d+)_\d+", block)
        if gate is None or (int(gate[1]), int(gate[2])) <= target:
            names |= set(SHIM.findall(block))
    return names


def cuda_shims(header: str) -> set[str]:
    """Names of the C functions that only CUDA builds of torch have."""
    blocks = re.findall(r"#ifdef USE_CUDA\n(.*?)#endif // USE_CUDA", header, re.DOTALL)
    return set().union(*(SHIM.findall(block) for block in blocks))


@pytest.fixture(scope="module")
def headers() -> list[str]:
    torch_root = Path(importlib.util.find_spec("torch").submodule_search_locations[0])
    folder = torch_root / "include" / "torch" / "csrc"
    return [(folder / name).read_text() for name in ("stable/c/shim.h", "inductor/aoti_torch/c/shim.h")]


@pytest.fixture(scope="module")
def allowed_shims(headers) -> set[str]:
    return set().union(*(shims_at(TARGET, header) for header in headers))


@pytest.fixture(scope="module")
def undefined() -> list[tuple[str, str, str]]:
    """(type letter of nm, name, version or "") of every symbol that the library needs from others."""
    assert LIBRARY.exists(), f"{LIBRARY} is not built: run make build"
    lines = [line.split() for line in run("nm", "-D", "--undefined-only", LIBRARY).splitlines()]
    return [(letter, *re.match(r"([^@]+)@*(.*)", name).groups()) for letter, name in lines]


def test_undefined_symbols_are_torch_shims_of_the_target_or_the_runtime(undefined, allowed_shims):
    surprises = [
        name
        for _, name, version in undefined
        if not RUNTIME_VERSION.match(version) and name not in TOOLCHAIN and name not in allowed_shims
    ]
    assert surprises == []
    assert any(name in allowed_shims for _, name, _ in undefined), "expected the library to register operators"


def test_cuda_only_shims_are_weak(undefined, headers):
    # CPU builds of torch lack them, and the library must load there too.
    only_cuda = set().union(*(cuda_shims(header) for header in headers))
    assert "aoti_torch_get_current_cuda_stream" in only_cuda
    assert {name for letter, name, _ in undefined if name in only_cuda and letter not in "wv"} == set()


def test_needs_torch_and_the_runtime_only():
    entries = re.findall(r"\((NEEDED|RPATH|RUNPATH)\)[^\[]*\[([^\]]+)\]", run("readelf", "-dW", LIBRARY))
    assert [value for tag, value in entries if tag != "NEEDED"] == [], "expected no RPATH"
    needed = {value for tag, value in entries if tag == "NEEDED"}
    assert {"libtorch.so", "libtorch_cpu.so"} <= needed
    # So neither libcudart nor libpython: the first would tie us to one CUDA major, the second to one Python.
    assert {name for name in needed if not NEEDED.match(name)} == set()


def test_exports_neither_cudart_nor_our_own_functions():
    names = run("nm", "-DC", "--defined-only", LIBRARY)
    assert [line for line in names.splitlines() if re.search(r"\bcuda[A-Z]|\bl2pf::", line)] == []


def test_version_gates_of_a_header():
    header = """
    AOTI_TORCH_EXPORT AOTITorchError aoti_torch_zero_(AtenTensorHandle self);
    #if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_10_0
    AOTI_TORCH_EXPORT AOTITorchError
    torch_list_size(StableListHandle list_handle, size_t* size);
    #endif // TORCH_FEATURE_VERSION >= TORCH_VERSION_2_10_0
    #if TORCH_FEATURE_VERSION >= TORCH_VERSION_2_11_0
    AOTI_TORCH_EXPORT int32_t torch_dtype_float8_e8m0fnu();
    #endif
    """
    assert shims_at((2, 10), header) == {"aoti_torch_zero_", "torch_list_size"}
    assert shims_at((2, 9), header) == {"aoti_torch_zero_"}
    assert "torch_dtype_float8_e8m0fnu" in shims_at((2, 11), header)
