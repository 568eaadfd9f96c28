"""The layers of DESIGN: each is named by what it may not include, and one Python module reads the environment."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "dsv41_l2pf"

TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
PYTHON = re.compile(r"^(Python\.h|pybind11/)")
CUDA = re.compile(r"^(cuda|cooperative_groups|cub/|thrust/|nv/|nvtx|driver_types|device_)")
OUR_CPU = re.compile(r"^(\.\./)*cpu/")
OUR_CUDA = re.compile(r"^(\.\./)*cuda/")
OUR_OPS = re.compile(r"^(\.\./)*ops[^/]*$")

# layer -> what it may not include
FORBIDDEN = {
    "core": [TORCH, PYTHON, CUDA, OUR_CPU, OUR_CUDA, OUR_OPS],
    "cpu": [TORCH, PYTHON, CUDA, OUR_CUDA, OUR_OPS],
    "cuda": [TORCH, PYTHON, OUR_CPU, OUR_OPS],
    "ops": [PYTHON],
}


def layer_of(path: Path) -> str:
    folder = path.relative_to(CSRC).parts[0] if path.parent != CSRC else ""
    return folder or ("ops" if path.name.startswith("ops") else "core")


def includes(text: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.MULTILINE)


def violations(layer: str, text: str) -> list[str]:
    return [name for name in includes(text) if any(pattern.search(name) for pattern in FORBIDDEN[layer])]


SOURCES = sorted(path for path in CSRC.rglob("*") if path.suffix in {".h", ".cpp", ".cuh", ".cu"})


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CSRC)))
def test_layer_includes_only_what_it_may(path):
    layer = layer_of(path)
    assert layer in FORBIDDEN, f"{path}: expected a layer of {sorted(FORBIDDEN)}, got {layer}"
    assert violations(layer, path.read_text()) == [], f"{path} is in the layer {layer}"


def test_every_layer_has_sources():
    assert {layer_of(path) for path in SOURCES} == set(FORBIDDEN)


@pytest.mark.parametrize(
    ("layer", "include", "allowed"),
    [
        ("core", "<cuda_runtime.h>", False),
        ("core", "<torch/csrc/stable/tensor.h>", False),
        ("core", '"cuda/cuda_backend.h"', False),
        ("core", '"plan.h"', True),
        ("cpu", "<cuda_runtime_api.h>", False),
        ("cpu", '"cpu/cpu_backend.h"', True),
        ("cuda", "<cuda_runtime.h>", True),
        ("cuda", "<c10/cuda/CUDAStream.h>", False),
        ("cuda", '"../ops.h"', False),
        ("ops", "<torch/csrc/stable/library.h>", True),
        ("ops", "<Python.h>", False),
    ],
)
def test_the_check_itself(layer, include, allowed):
    assert (violations(layer, f"#include {include}\n") == []) is allowed


def environment_reads(tree: ast.AST) -> list[int]:
    """Line numbers that use os.environ or os.getenv for more than setting a variable (which other libraries read)."""
    stores = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            stores.add(id(node.value))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr in {"update", "setdefault"}:
                stores.add(id(function.value))
    lines = []
    for node in ast.walk(tree):
        is_environ = isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"}
        is_import = isinstance(node, ast.ImportFrom) and node.module == "os" and any(
            alias.name in {"environ", "environb", "getenv"} for alias in node.names
        )
        if (is_environ and id(node) not in stores) or is_import:
            lines.append(node.lineno)
    return lines


def test_only_config_reads_the_environment():
    readers = {
        str(path.relative_to(PACKAGE)): environment_reads(ast.parse(path.read_text()))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "config.py"
    }
    assert {name: lines for name, lines in readers.items() if lines} == {}


@pytest.mark.parametrize(
    ("code", "is_read"),
    [
        ("os.environ['A']", True),
        ("os.environ.get('A')", True),
        ("os.getenv('A')", True),
        ("from os import environ", True),
        ("dict(os.environ, A='1')", True),
        ("os.environ['A'] = '1'", False),
        ("os.environ.update(A='1')", False),
        ("os.environ.setdefault('A', '1')", False),
        ("a = os.environ.setdefault('A', '1')", True),
        ("'os.environ'", False),
    ],
)
def test_the_environment_check_itself(code, is_read):
    assert bool(environment_reads(ast.parse(code))) is is_read
