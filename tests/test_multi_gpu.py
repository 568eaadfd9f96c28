"""`benchmarks.multi_gpu` on two gloo ranks: it runs, its ranks agree, and its JSON and page hold what they should."""

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from benchmarks import multi_gpu, multi_gpu_case, page, plots, sharded, transports
from benchmarks.arms import Hooks
from benchmarks.common import Document
from benchmarks.ranks import Ranks
from benchmarks.runs import AUTO, EMPTY, TUNED
from benchmarks.timing import NULL, OFF
from gloo import run_on_two_ranks

from dsv41_l2pf.demo.graph_nodes import LAUNCH_ORDER_PORT, PROGRAMMATIC, CapturedGraph, Edge, Node

ROOT = Path(__file__).resolve().parent.parent
CASE = "bf16 tp2 gloo, M=1"
LATE_CASE = f"{CASE}, rank 0 late by 30 us"
PROBE = "collective of gloo"
CPU = torch.device("cpu")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """The JSON of one run on two ranks."""
    folder = tmp_path_factory.mktemp("multi_gpu")
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    words = ["--cpu", "--quick", "--no-plot", "--layers", "1", "--rounds", "2", "--commit", "abc", "--out", str(folder)]
    command = [sys.executable, *launcher, "--master-port", str(free_port()), "-m", "benchmarks.multi_gpu", *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    found = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    assert found.stdout.count("THE TIMES MEAN NOTHING") == 1  # only the first rank speaks
    return json.loads((folder / "multi_gpu.json").read_text())


def test_every_arm_of_every_case_is_measured(content):
    assert content["failed"] == {} and content["skipped"] == []
    assert [(row["case"], row["arm"]) for row in content["rows"]] == [
        *((PROBE, arm) for arm in (OFF, NULL, EMPTY, AUTO)),
        *((CASE, arm) for arm in (OFF, NULL, AUTO, TUNED)),
        *((LATE_CASE, arm) for arm in (OFF, NULL, AUTO)),
    ]


def test_rows_say_what_each_rank_measured_and_that_ranks_decode_the_same(content):
    steps = [row for row in content["rows"] if row["unit"] == "us"]
    assert all(len(row["rank_us"]) == 2 and row["ranks_agree"] for row in steps)
    assert all(row["value"] > 0 for row in content["rows"])


def test_attach_learned_a_window_a_collective_and_tune_was_told_the_slowest_rank(content):
    (auto,) = [row for row in content["rows"] if (row["case"], row["arm"]) == (CASE, AUTO)]
    assert auto["num_windows"] == auto["num_windows_on"] == 2  # one layer: behind o_proj and down_proj
    (tuned,) = [row for row in content["rows"] if row["arm"] == TUNED]
    assert tuned["tune"]["reason"].partition(":")[0] in ("on by tune", "off by tune")


def test_a_run_on_cpus_has_no_goals_and_says_why(content):
    assert content["goals"] == [] and "MEAN NOTHING" in content["warning"]
    assert (content["commit"], content["gpu"]) == ("abc", "2 x none")
    assert content["command"].startswith("torchrun --nproc-per-node 2 -m benchmarks.multi_gpu --cpu")


def _one_rank_fails(rank):
    ranks = Ranks(CPU, dist.group.WORLD)
    document = Document("multi_gpu", {})
    with ranks.case(document, "raises on rank 1"):
        if rank == 1:
            raise ArithmeticError("only here")
    with ranks.case(document, "differs on rank 1"):
        ranks.require_none("it differs" if rank == 1 else "")
    with ranks.case(document, "fine"):
        ranks.require_none("")
    return {"failed": document.failed, "slowest": ranks.slowest({OFF: [1.0 + rank, 3.0 - rank]})}


def test_what_fails_on_one_rank_is_said_by_all_and_the_slowest_counts(tmp_path):
    for found in run_on_two_ranks(_one_rank_fails, tmp_path):
        assert found["failed"] == {"raises on rank 1": "only here", "differs on rank 1": "rank 1: it differs"}
        assert found["slowest"] == {OFF: [2.0, 3.0]}


def gpu_content():
    """What a run on two GPUs would leave."""
    document = Document("multi_gpu", dict(gpu="2 x a GPU", driver="1", torch="2.11", commit="abc", command="torchrun"))
    shared = {"case": "bf16 tp2 nccl, M=1", "unit": "us", "num_tokens": 1, "late_us": 0.0}
    for arm, ratio in ((OFF, 1.0), (NULL, 1.001), (TUNED, 0.96)):
        spread = {"ratio_to_off": ratio, "ratio_low": ratio - 0.002, "ratio_high": ratio + 0.002}
        document.rows.append({**shared, **spread, "arm": arm, "value": 2000 * ratio})
        late = {**shared, **spread, "case": "late", "late_us": 30.0, "value": 2900.0}
        document.rows.append({**late, "arm": AUTO if arm == TUNED else arm})
    document.goals = multi_gpu.goals_of(document)
    document.extra["frontier"] = {"bf16 tp2 nccl, M=1": {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL": 16}}
    return document.content()


def test_the_goals_are_the_best_saving_and_never_slower(tmp_path):
    goals = {goal["text"]: goal for goal in gpu_content()["goals"]}
    assert set(goals) == {
        "M=1: step of off, ours_tuned, the best of the cases",
        "bf16 tp2 nccl, M=1: never slower, ours_tuned",
        "late: never slower, ours_auto",
    }
    assert all(goal["met"] and goal["measured"] == 0.96 for goal in goals.values())


def test_the_page_and_the_picture_show_the_run(tmp_path):
    text = page.render({"multi_gpu": gpu_content()}, "results")
    assert "| bf16 tp2 nccl, M=1 | 1.0000 | 1.0010 | 0.9600 |" in text
    assert "| bf16 tp2 nccl, M=1 | `ncclDevKernel_AllReduce_Sum_bf16_RING_LL` | 16 |" in text
    assert "Other GPUs, on paper" not in text
    plots.draw(tmp_path / "multi_gpu.png", gpu_content())
    assert (tmp_path / "multi_gpu.png").read_bytes().startswith(b"\x89PNG")


def test_the_frontier_is_what_launch_order_edges_into_prefetches_come_from(monkeypatch):
    names = ("gemm", *("ncclDevKernel_AllReduce", "l2pf_prefetch_kernel") * 2)
    nodes = [Node(index, "kernel", name) for index, name in enumerate(names)]
    behind = {"from_port": LAUNCH_ORDER_PORT, "type": PROGRAMMATIC}
    full = {"from_port": 0, "type": 0}
    edges = [Edge(0, 1, **full), Edge(1, 2, **behind), Edge(1, 3, **full), Edge(3, 4, **behind), Edge(2, 4, **full)]
    monkeypatch.setattr(multi_gpu_case, "read_graph", lambda graph: CapturedGraph(nodes, edges))
    assert multi_gpu_case.frontier_of(SimpleNamespace(graph=None)) == {"ncclDevKernel_AllReduce": 2}


class Logged(Hooks):
    """Notes what it is called with."""

    def __init__(self):
        self.log = []

    @contextmanager
    def forward(self):
        self.log.append("begin")
        yield
        self.log.append("end")

    @contextmanager
    def collective(self, data, kind):
        self.log.append(kind)
        yield


class Alone(transports.Transport):
    """One rank."""

    def all_reduce(self, data):
        return data


def test_an_arms_hooks_are_around_its_own_steps_only():
    model = sharded.make_slice(sharded.tiny_config(1, 2), "bf16", 0, CPU)
    collectives, hooks = sharded.Collectives(model, Alone()), Logged()
    decoder = SimpleNamespace(step=lambda: model(input_ids=torch.zeros(1, 1, dtype=torch.long)).logits)
    off = decoder.step()
    on = sharded.HookedDecoder(decoder, collectives, hooks).step()
    decoder.step()
    assert hooks.log == ["begin", "all_reduce", "all_reduce", "end"]
    assert torch.equal(on, off)
    collectives.remove()
    assert all(not module._forward_hooks for module in model.modules())


def test_the_share_of_edges_behind_the_collective_is_counted():
    frontier = {"ncclDevKernel_AllReduce": 3, "elementwise": 1}
    assert multi_gpu_case.share_behind(frontier, transports.ProcessGroup.kernel) == 0.75
    assert multi_gpu_case.share_behind({}, "nccl") != multi_gpu_case.share_behind({}, "nccl")  # not a number


def test_the_windows_of_a_slice_begin_behind_the_first_collective():
    model = sharded.make_slice(sharded.tiny_config(2, 2), "bf16", 0, CPU)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [[names[id(weight)].split(".")[-2] for weight in window] for window in sharded.windows_of(model)]
    attention, mlp = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
    assert found == [mlp, attention, mlp, ["lm_head"]]


def test_ranks_share_what_is_not_sharded():
    first, second = (sharded.make_slice(sharded.tiny_config(1, 2), "bf16", rank, CPU) for rank in range(2))
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert not torch.equal(first.model.layers[0].mlp.up_proj.weight, second.model.layers[0].mlp.up_proj.weight)


def test_an_fp8_slice_computes_about_what_the_bf16_one_does():
    linear = torch.nn.Linear(64, 32, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    linear.weight.normal_(std=0.02)
    x = torch.randn(3, 1, 64, dtype=torch.bfloat16)
    got, wanted = sharded.Fp8Linear(linear)(x), linear(x)
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted, atol=0.05, rtol=0.1)
