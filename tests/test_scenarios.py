"""Public bug reports without a home elsewhere, and the table of all of them: every test it names exists."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from three_linears import HIDDEN, Model, X, signature

import dsv41_l2pf as l2pf
from dsv41_l2pf import Config

ROOT = Path(__file__).resolve().parent.parent
TABLE = (ROOT / "docs" / "scenarios.md").read_text()
ROWS = re.findall(r"^\| (\d+) \|", TABLE, re.MULTILINE)
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.(?:py|cpp))::([\w.]+)`", TABLE)))

ops = torch.ops.dsv41


def test_the_table_has_every_report_once():
    assert ROWS == [str(number) for number in range(1, 37)]
    for row in re.findall(r"^\| \d+ \|.*$", TABLE, re.MULTILINE):
        assert "`tests/" in row, f"a row without a test: {row}"


@pytest.mark.parametrize(("path", "name"), NAMED, ids=map("::".join, NAMED))
def test_a_test_that_the_table_names_exists(path, name):
    text = (ROOT / path).read_text()
    if path.endswith(".py"):
        assert f"def {name}(" in text
    else:
        suite, case = name.split(".")
        assert re.search(rf"TEST(_F|_P)?\({suite}, {case}\)", text)


class Watch:
    """A backend for torch.compile that keeps the graph it is given."""

    def __init__(self):
        self.targets = []

    def __call__(self, gm, inputs):
        self.targets += [str(node.target) for node in gm.graph.nodes]
        return gm


def begin_and_end(x):
    ops.collective_begin(x, "all_reduce")
    ops.emulated_all_reduce(x, 0.0)
    ops.collective_end(x)
    return x


def num_collectives(prefetcher):
    return signature(prefetcher)["num_collectives"]


def test_a_traced_bracket_holds_our_operators_and_no_stream():
    """Report 9: events and streams in a traced graph change device or order."""
    watch = Watch()
    torch.compiler.reset()
    torch.compile(begin_and_end, backend=watch, fullgraph=True)(X.clone())
    seen = [target.split(".")[1] for target in watch.targets if target.startswith("dsv41.")]
    assert seen == ["collective_begin", "emulated_all_reduce", "collective_end"]
    assert not [target for target in watch.targets if "stream" in target or "event" in target]


def test_torchscript_keeps_operators_that_return_nothing():
    """Report 10: it deletes those whose schema shows no effect; an anchor that is mutated is one."""
    scripted = torch.jit.script(begin_and_end)
    prefetcher = l2pf.Prefetcher(Config())
    for _ in range(3):  # the second run is the optimised one
        with prefetcher.forward(2):
            scripted(X.clone())
            scripted(X.clone())
        assert num_collectives(prefetcher) == 2


def test_operators_on_an_input_that_nobody_else_reads_survive_compilation():
    """Reports 11 and 12: they were deleted, and two alike became one."""
    num_layers = 4

    def layers(x):
        for _ in range(num_layers):
            sent = x * 2
            ops.collective_begin(sent, "all_reduce")
            ops.collective_end(sent)
        ops.collective_begin(x * 3, "all_reduce")
        ops.collective_begin(x * 3, "all_reduce")
        return x + 1

    torch.compiler.reset()
    compiled = torch.compile(layers, fullgraph=True)
    eager, prefetcher = l2pf.Prefetcher(Config()), l2pf.Prefetcher(Config())
    compiled(X)
    with eager.forward(2):
        layers(X)
    with prefetcher.forward(2):
        compiled(X)
    assert num_collectives(prefetcher) == num_collectives(eager) == num_layers + 2


def test_every_compiler_is_told_cxx20():
    """Report 27: headers of newer torch refuse C++17."""
    assert "set(CMAKE_CXX_STANDARD 20)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)" in (ROOT / "CMakeLists.txt").read_text()
    nvcc = (ROOT / "cmake" / "FindNvcc.cmake").read_text()
    assert "set(CMAKE_CUDA_STANDARD 20)\nset(CMAKE_CUDA_STANDARD_REQUIRED ON)" in nvcc


FORK = """
import os, sys, torch
sys.path.insert(0, "tests")
from three_linears import Model, X
import dsv41_l2pf as l2pf

def use():
    model = Model()
    prefetcher = l2pf.attach(model, l2pf.Config())
    for _ in range(3): model(X)
    (signature,) = prefetcher.status()["signatures"]
    assert (signature["num_launched"], signature["latched_off"]) == (2, False)
    return prefetcher

{before}
child = os.fork()
use()
if child == 0: os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("before", ["", "kept = use()"], ids=["before first use", "after first use"])
def test_parent_and_child_both_work_after_a_fork(before):
    """Report 30, the half that needs no GPU."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}  # torch's own pool does not survive a fork
    program = [sys.executable, "-c", FORK.format(before=before)]
    result = subprocess.run(program, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr[-2000:]


def test_a_weight_without_an_address_is_left_out():
    """Report 17: tensors whose storage is empty, and those with holes, are no error."""
    model, prefetcher = Model(), l2pf.Prefetcher(Config())
    w = model.b.weight
    with prefetcher.forward(2):
        ops.collective_begin(X, "all_reduce")
        ops.collective_end(X)
        ops.record_weight([w[:0], w.t(), w[:, ::2], w[1:], torch.empty(0), w.view(-1)])
    (segment,) = prefetcher.plan_segments(2)
    assert segment == (0, w.data_ptr(), HIDDEN * HIDDEN * 4)
