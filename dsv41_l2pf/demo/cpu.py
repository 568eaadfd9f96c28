"""The demo without a GPU: two gloo ranks decode with a Llama under transformers' own tensor parallelism."""

from __future__ import annotations

import platform
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..report import brace, mib, window_table
from . import cpu_rank, missing_packages
from .arms import SHOWN_WINDOWS, spread

_EXPLANATION = (
    "A CPU has no DRAM that idles while a collective waits: gloo and the prefetch worker use the same cores. So the "
    "claim here is that the right weights are found and prefetched and that the output stays the same, not that a step "
    "is faster. In eager code the hook also watches every operator: `on` against `on, windows off` shows the prefetch "
    "alone. Under CUDA graphs that cost is paid once, at capture."
)


def run(output: Path, console: Console) -> tuple[int, dict]:
    """Decodes with and without prefetching, prints plan, equality and step times, and writes the picture to `output`.

    Returns the exit status and what was found, for JSON. The status is 0; 1 when tokens or logits differ or when no window was launched; 2 when a package is missing.
    """
    missing = missing_packages("transformers", "accelerate", "matplotlib")
    if missing:
        console.print(f"the demo needs {', '.join(missing)}: pip install {' '.join(missing)}")
        return 2, {"missing_packages": missing}
    console.print(
        f"dsv41_l2pf demo on {platform.machine()} CPU, torch {torch.__version__}: {cpu_rank.NUM_RANKS} gloo ranks, one "
        "thread each, a 4-layer bf16 Llama (hidden 1024), tensor parallelism by transformers, greedy decode"
    )
    with _folder() as folder, _progress(console) as progress:
        task = progress.add_task("making the model and its checkpoint", total=None)
        _save_model(folder / "model")
        results = _run_ranks(folder, progress, task)
    first = results[0]
    if first["signature"] is None:
        reason = first["status"]["reason"] or "the prefetcher saw no decode step"
        console.print(f"no forward was learned: {reason}")
        return 1, {"device": "cpu", "passed": False, "reason": reason}
    names = {index: [brace(weights)] for index, weights in first["names"].items()}
    console.print(window_table(first["signature"], names, SHOWN_WINDOWS))
    passed = all(_passed(result) for result in results)
    if first["arms"]:
        from .picture import draw

        title = f"{cpu_rank.NUM_RANKS} gloo ranks, Llama decode on CPU"
        draw(output, title, first["signature"]["windows"], first["arms"])
        console.print(f"picture: {output}")
    console.print(_EXPLANATION)
    console.print(_summary(results, passed))
    facts = {
        "device": "cpu",
        "passed": passed,
        "signature": first["signature"],
        "tokens_equal": first["tokens_on"] == first["tokens_off"],
        "logits_equal": all(result["logits_equal"] for result in results),
        "step_ms": first["arms"],
    }
    return (0 if passed else 1), facts


def _passed(result: dict) -> bool:
    launched = result["signature"] is not None and result["signature"]["num_launched"] > 0
    return launched and result["tokens_on"] == result["tokens_off"] and result["logits_equal"]


@contextmanager
def _folder() -> Any:
    folder = Path(tempfile.mkdtemp(prefix="dsv41_l2pf_demo."))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _progress(console: Console) -> Progress:
    return Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console)


def _save_model(folder: Path) -> None:
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    LlamaForCausalLM(cpu_rank.llama_config()).to(torch.bfloat16).save_pretrained(folder)


def _run_ranks(folder: Path, progress: Progress, task: Any) -> list[dict]:
    """The result of every rank. Raises the exception of a rank that fails."""
    reports = mp.get_context("spawn").Queue()
    ranks = mp.start_processes(
        cpu_rank.decode, args=(folder, reports), nprocs=cpu_rank.NUM_RANKS, join=False, start_method="spawn"
    )
    results: dict[int, dict] = {}
    num_blocks, done = len(cpu_rank.ARMS) * cpu_rank.NUM_ROUNDS * cpu_rank.NUM_RANKS, 0
    finished = False
    while not (finished and reports.empty()):
        finished = finished or ranks.join(timeout=0.1)
        while not reports.empty():
            kind, *values = reports.get()
            if kind == "stage":
                progress.update(task, description=values[0])
            elif kind == "block":
                done += 1
                progress.update(task, description=f"timing steps, off and on in turns: {done} of {num_blocks} blocks")
            else:
                results[values[0]] = values[1]
    return [results[rank] for rank in range(cpu_rank.NUM_RANKS)]


def _summary(results: list[dict], passed: bool) -> Table:
    first = results[0]
    signature = first["signature"]
    equal = sum(on == off for on, off in zip(first["tokens_on"], first["tokens_off"]))
    launched = ", ".join(f"{result['signature']['num_launched']} on rank {rank}" for rank, result in enumerate(results))
    bits = "bit-identical" if all(result["logits_equal"] for result in results) else "DIFFERENT"
    table = Table(title="dsv41_l2pf: one decode step of one rank")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("collectives", str(signature["num_collectives"]))
    table.add_row("windows planned", str(signature["num_windows"]))
    table.add_row("planned MiB", mib(signature["planned_bytes"]))
    table.add_row("windows launched in the last step", launched)
    table.add_row("tokens equal with and without", f"{equal} of {len(first['tokens_off'])}")
    table.add_row("logits with and without", bits)
    for name, block_ms in first["arms"].items():
        table.add_row(f"step ms, {name}: median (quartiles)", str(spread(block_ms)))
    table.add_row("result", "passed" if passed else "FAILED", end_section=True)
    return table
