"""What ends a process or happens at its end, each in one of its own: unmapped weights, exits with live graphs."""

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def run_python(*args):
    paths = os.pathsep.join(map(str, (ROOT, HERE.parent, HERE)))
    environ = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run([sys.executable, *args], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=240)


@contextmanager
def running(programs):
    """The futures of `run_python` for {key: its arguments}, all started now, some at a time."""
    with ThreadPoolExecutor(8) as pool:
        yield {key: pool.submit(run_python, *arguments) for key, arguments in programs.items()}


FORMS = ("load", "bulk", "lines")
SCENARIOS = ("sleep_and_wake", "invalidated_before", "invalidated_after", "window_switched_off", "last_byte")


@pytest.fixture(scope="module")
def unmapped():
    """Runs of every scenario in processes of their own, for an illegal address ends a process's use of the GPU."""
    script = str(HERE / "unmapped_weights.py")
    with running({case: (script, *case) for case in itertools.product(SCENARIOS, FORMS)}) as results:
        yield results


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_touches_unmapped_memory(unmapped, scenario, form):
    result = unmapped[scenario, form].result()
    assert (result.returncode, result.stdout) == (0, "fine\n"), result.stderr[-3000:]


AT_EXIT = """
import torch
from chain import Chain
from graph_inspect import capture
chain = Chain().learn()
graphs = [capture(chain.forward)[0] for _ in range(3)]
[graph.replay() for graph in graphs]
{state}
print("end of the program", flush=True)
"""


STATES = (
    "",
    "torch.cuda.synchronize(); chain.prefetcher.pause()",
    "chain.prefetcher.invalidate()",
    "del chain",
    "graphs.append(graphs)",
    "torch.ops.dsv41.l2_prefetch(chain.x, chain.layers)",
)


@pytest.fixture(scope="module")
def exits():
    with running({state: ("-c", AT_EXIT.format(state=state)) for state in STATES}) as results:
        yield results


@pytest.mark.parametrize("state", STATES)
def test_the_interpreter_exits_cleanly_with_live_graphs(exits, state):
    result = exits[state].result()
    assert (result.returncode, result.stdout) == (0, "end of the program\n"), result.stderr[-3000:]
