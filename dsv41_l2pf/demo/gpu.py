"""The demo with a GPU: one rank's slice of a Llama-70B-class model decodes in a CUDA graph, with and without prefetching."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from .. import attach
from ..config import MIB
from ..prefetcher import Prefetcher
from ..report import brace, mib, weight_names, window_table
from .arms import SHOWN_WINDOWS, Arm, interleave, spread
from .gpu_model import (
    DELAY_US,
    NUM_SEQUENCES,
    CapturedStep,
    Decoder,
    layer_bytes,
    llama_config,
    make_model,
    num_layers_that_fit,
)
from .graph_nodes import CapturedGraph, read_graph

DECODE_TOKENS = 32
NUM_ROUNDS = 25
STEPS_PER_BLOCK = 24
WARM_STEPS = 3  # of every block, untimed
OFF, NULL, EMPTY, ON = "off", "off, again", "windows off", "on"
MODE, NUM_TOKENS = "decode", NUM_SEQUENCES

_EXPLANATION = (
    f"The peers are emulated: every collective is a kernel that waits {DELAY_US:.0f} us for an answer. "
    "`windows off` is the same graph as `on` with every budget set to 0: what an empty node costs. `off, again` is the "
    "graph of `off`, measured a second time: what chance alone does."
)


@dataclass
class Result:
    """What one run found. arms: block medians of the step time in us, by name."""

    signature: dict
    num_nodes: int
    num_nodes_off: int
    num_launch_order: int
    tokens_off: list[int]
    tokens_on: list[int]
    logits_equal: bool
    names: dict[int, list[str]] = field(default_factory=dict)
    arms: dict[str, list[float]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        has_all_nodes = 0 < self.num_nodes == self.signature["num_windows"] and self.num_nodes_off == 0
        return has_all_nodes and self.tokens_on == self.tokens_off and self.logits_equal

    def facts(self, device: str) -> dict:
        return {
            "device": device,
            "passed": self.passed,
            "signature": self.signature,
            "num_nodes": self.num_nodes,
            "num_launch_order": self.num_launch_order,
            "tokens_equal": self.tokens_on == self.tokens_off,
            "logits_equal": self.logits_equal,
            "step_us": self.arms,
        }


def run(output: Path, console: Console) -> tuple[int, dict]:
    """Decodes with and without prefetching, prints plan, nodes, equality and step times, writes the picture to `output`.

    Returns the exit status and what was found, for JSON. The status is 0; 1 when tokens or logits differ, when the
    graph's nodes are not the plan's windows, or without memory.
    """
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    num_layers = num_layers_that_fit()
    if num_layers == 0:
        reason = f"{gpu.name}: expected free memory for two decoder layers (about 2 GiB), got less"
        console.print(reason)
        return 1, {"device": gpu.name, "passed": False, "reason": reason}
    config = llama_config(num_layers)
    console.print(
        f"dsv41_l2pf demo on {gpu.name} ({gpu.L2_cache_size / MIB:.0f} MiB L2), torch {torch.__version__}: one of four "
        f"ranks of a Llama-70B-class model, {num_layers} layers of {mib(layer_bytes(config))} MiB in bf16, greedy decode "
        f"of {NUM_SEQUENCES} sequences in a CUDA graph, collectives emulated with {DELAY_US:.0f} us"
    )
    with torch.inference_mode(), _progress(console) as progress:
        result = _measure(config, progress)
    if result.signature["windows"]:
        names = {index: [brace(weights)] for index, weights in result.names.items()}
        console.print(window_table(result.signature, names, SHOWN_WINDOWS))
    if result.arms:
        from .picture import draw

        title = f"{gpu.name}: one TP4 rank of a Llama-70B-class model, {num_layers} layers, bf16, captured decode"
        draw(output, title, result.signature["windows"], result.arms, unit="us")
        console.print(f"picture: {output}")
    console.print(_EXPLANATION)
    console.print(_summary(result))
    return (0 if result.passed else 1), result.facts(gpu.name)


def _progress(console: Console) -> Progress:
    return Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console)


def _measure(config: object, progress: Progress) -> Result:
    task = progress.add_task("making the model on the GPU", total=None)

    def stage(text: str) -> None:
        progress.update(task, description=text)

    model = make_model(config, "cuda")
    decoder = Decoder(model, NUM_SEQUENCES)
    stage("decoding without the prefetcher, then capturing that step")
    decoder.decode(2, decoder.step)  # libraries make their handles and workspaces outside the capture
    off = CapturedStep(decoder)
    tokens_off, logits_off = decoder.decode(DECODE_TOKENS, off)

    stage("two eager steps with the prefetcher, which learns; then capturing the step")
    prefetcher = attach(model, mode=MODE)
    decoder.decode(2, decoder.step)
    on = CapturedStep(decoder)
    tokens_on, logits_on = decoder.decode(DECODE_TOKENS, on)
    signature = _signature(prefetcher)
    result = Result(
        signature=signature,
        num_nodes=len(read_graph(on.graph).kernels("l2pf_prefetch")),
        num_nodes_off=len(read_graph(off.graph).kernels("l2pf_prefetch")),
        num_launch_order=_num_launch_order(read_graph(on.graph)),
        tokens_off=tokens_off,
        tokens_on=tokens_on,
        logits_equal=torch.equal(logits_off, logits_on),
    )
    if signature["windows"]:
        result.names = weight_names(prefetcher, signature)
        stage("timing steps, off and on in turns")
        result.arms = _time(decoder, prefetcher, signature, off, on, stage)
    prefetcher.detach()
    return result


def _signature(prefetcher: Prefetcher) -> dict:
    status = prefetcher.status()
    for signature in status["signatures"]:
        if (signature["num_tokens"], signature["mode"]) == (NUM_TOKENS, MODE):
            return signature
    reason = status["reason"] or "the prefetcher saw no decode step"
    return {"windows": [], "num_windows": 0, "num_collectives": 0, "planned_bytes": 0, "state": "unlearned", "reason": reason}


def _num_launch_order(graph: CapturedGraph) -> int:
    nodes = graph.kernels("l2pf_prefetch")
    return sum(any(edge.is_launch_order for edge in graph.edges_into(node)) for node in nodes)


def _time(
    decoder: Decoder, prefetcher: Prefetcher, signature: dict, off: CapturedStep, on: CapturedStep, stage: object
) -> dict[str, list[float]]:
    """Block medians of the step time in us, by arm."""
    current = off

    def use_off() -> None:
        nonlocal current
        current = off

    def use_on(budget_bytes: int) -> None:
        nonlocal current
        current = on
        for window in signature["windows"]:
            index = window["collective_index"]
            prefetcher.set_window(index, num_tokens=NUM_TOKENS, mode=MODE, budget_bytes=budget_bytes)

    def block() -> list[float]:
        decoder.rewind()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS_PER_BLOCK + 1)]
        for _ in range(WARM_STEPS):
            current()
        events[0].record()
        for event in events[1:]:
            current()
            event.record()
        events[-1].synchronize()
        return [1e3 * start.elapsed_time(end) for start, end in zip(events, events[1:])]

    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        stage(f"timing steps, off and on in turns: {done} of {len(arms) * NUM_ROUNDS} blocks")

    arms = [Arm(OFF, use_off), Arm(NULL, use_off), Arm(EMPTY, lambda: use_on(0)), Arm(ON, lambda: use_on(-1))]
    times = interleave(arms, block, NUM_ROUNDS, advance)
    use_on(-1)
    return times


def _summary(result: Result) -> Table:
    signature = result.signature
    equal = sum(on == off for on, off in zip(result.tokens_on, result.tokens_off))
    table = Table(title="dsv41_l2pf: one decode step of one rank, replayed from a CUDA graph")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("collectives", str(signature["num_collectives"]))
    table.add_row("windows planned", str(signature["num_windows"]))
    table.add_row("planned MiB", mib(signature["planned_bytes"]))
    table.add_row("prefetch nodes in the graph", str(result.num_nodes))
    table.add_row("  of them behind a launch-order edge", str(result.num_launch_order))
    table.add_row("prefetch nodes in the graph without", str(result.num_nodes_off))
    table.add_row("tokens equal with and without", f"{equal} of {len(result.tokens_off)}")
    table.add_row("logits with and without", "bit-identical" if result.logits_equal else "DIFFERENT")
    for name, block_us in result.arms.items():
        table.add_row(f"step us, {name}: median (quartiles)", str(spread(block_us)))
    for name in (NULL, EMPTY, ON):
        if name in result.arms:
            table.add_row(f"step of {name} / off: median (quartiles)", _ratio(result.arms[name], result.arms[OFF]))
    if signature["reason"]:
        table.add_row("why not", signature["reason"])
    table.add_row("result", "passed" if result.passed else "FAILED", end_section=True)
    return table


def _ratio(times: list[float], baseline: list[float]) -> str:
    """Round by round, so that slow drift cancels."""
    low, median, high = statistics.quantiles([a / b for a, b in zip(times, baseline)], n=4, method="inclusive")
    return f"{median:.3f} ({low:.3f} .. {high:.3f})"
