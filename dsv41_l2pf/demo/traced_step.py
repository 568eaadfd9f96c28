"""The step that `trace` shows: a small model with emulated peers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..config import Config
from ..prefetcher import Prefetcher, attach
from ..trace import Slice, trace_eager_step, trace_graph_step
from .small_model import SmallModel

_NUM_TOKENS = 4
_NUM_LAYERS = 4
_NUM_WARM_UPS = 3
_NUM_EAGER_STEPS = 5  # the fastest one counts: a CPU is shared with everything else


def _fastest(prefetcher: Prefetcher, step: Callable[[], object]) -> list[Slice]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the prefetch worker needs a core too
    try:
        steps = [trace_eager_step(prefetcher, step) for _ in range(_NUM_EAGER_STEPS)]
    finally:
        torch.set_num_threads(num_threads)
    return min(steps, key=lambda slices: max(slice.end_us for slice in slices))


def traced_step(on_gpu: bool) -> tuple[str, list[Slice]]:
    """What was traced, in words, and its slices; on a GPU of a replayed graph, else of an eager step."""
    torch.manual_seed(0)
    hidden, delay_us = (4096, 20.0) if on_gpu else (512, 200.0)
    kind = {"device": "cuda", "dtype": torch.bfloat16} if on_gpu else {"device": "cpu", "dtype": torch.float32}
    model = SmallModel(hidden, _NUM_LAYERS, delay_us, **kind)
    x = torch.randn(_NUM_TOKENS, hidden, **kind)
    prefetcher = attach(model, Config())
    for _ in range(_NUM_WARM_UPS):
        model(x)
    slices = trace_graph_step(prefetcher, lambda: model(x)) if on_gpu else _fastest(prefetcher, lambda: model(x))
    prefetcher.detach()
    where = f"replayed from a graph on {torch.cuda.get_device_name()}" if on_gpu else "in eager code on a CPU"
    return f"one decode step, {_NUM_LAYERS} layers of width {hidden}, {_NUM_TOKENS} tokens, {where}", slices
