"""The torch.compile backend: places windows, then hands the graph to Inductor or to another backend."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from ..checks import require
from ..config import Config
from .names import has_subclasses, weight_name
from .place import place_in_aten, place_in_dynamo
from .report import GRADIENTS, GraphReport, add_report

logger = logging.getLogger("dsv41_l2pf")

_INDUCTOR = "inductor"
_FREEZING = "freezing repacks the weights: the bytes that a window could bring are not those that are read"
_SUBCLASSES = "tensor subclasses hide its operators; only inner='inductor' sees through them"


@dataclass(unsafe_hash=True)  # by value: Dynamo compiles a function anew for every other backend
class CompileBackend:
    """What `torch.compile(model, backend=...)` takes. See `compile_backend`."""

    inner: str | Callable
    config: Config | None

    __name__ = "dsv41"  # what torch.compile calls it in its logs

    def __call__(self, gm: GraphModule, example_inputs: list, **kwargs: Any) -> Callable:
        config = Config.from_env() if self.config is None else self.config
        if self.inner == _INDUCTOR:
            return _compile_with_inductor(gm, example_inputs, config, kwargs)
        if has_subclasses(gm.graph):
            _note(GraphReport(reason=_SUBCLASSES))
        else:
            _note(place_in_dynamo(gm, config), example_inputs)
        from torch._dynamo.backends.registry import lookup_backend

        return lookup_backend(self.inner)(gm, example_inputs, **kwargs)

    def reset(self) -> None:
        """What torch.compiler.reset() asks of a backend."""
        if hasattr(self.inner, "reset"):
            self.inner.reset()
        elif "torch._inductor.cudagraph_trees" in sys.modules:
            sys.modules["torch._inductor.cudagraph_trees"].reset_cudagraph_trees()


def compile_backend(inner: str | Callable = _INDUCTOR, config: Config | None = None) -> CompileBackend:
    """A backend for torch.compile that opens a window around every collective of a graph.

    inner: the backend that compiles the edited graph, by name or as a callable; `mode=` and `options=` go to it.
    config: the settings; None reads the environment at every compilation. `enabled`, `budget_bytes`, `all_gather` and
    `max_tokens` matter here. Raises ValueError for anything else.
    """
    require(isinstance(inner, str) or callable(inner), "inner", "a backend's name or a callable", inner)
    require(config is None or isinstance(config, Config), "config", "a Config or None", config)
    return CompileBackend(inner, config)


dsv41 = compile_backend()  # what `torch.compile(model, backend="dsv41")` finds


def _compile_with_inductor(gm: GraphModule, example_inputs: list, config: Config, kwargs: dict) -> Callable:
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    patches = _inductor_options(**kwargs)
    if patches.get("freezing", inductor_config.freezing):
        _note(GraphReport(reason=_FREEZING))
        return compile_fx(gm, example_inputs, config_patches=patches)
    if not has_subclasses(gm.graph):
        _note(place_in_dynamo(gm, config), example_inputs)
        return compile_fx(gm, example_inputs, config_patches=patches)

    # The collectives of DTensor, and the reads of quantised tensors, show only behind AOTAutograd.
    names = [weight_name(node) for node in gm.graph.find_nodes(op="placeholder")]

    def inner_compile(aten: GraphModule, inputs: list, **details: Any) -> Any:
        if details.get("is_inference"):
            _note(place_in_aten(aten, list(details.get("static_input_idxs", ())), names, config), inputs)
        elif not details.get("is_backward"):
            _note(GraphReport(reason=GRADIENTS))
        return compile_fx_inner(aten, inputs, **details)

    # AOTAutograd's cache sees only Dynamo's graph: without this it would return code with another config's windows.
    tag = f"{torch.compiler.config.cache_key_tag}|dsv41_l2pf {config}"
    with torch.compiler.config.patch(cache_key_tag=tag):
        return compile_fx(gm, example_inputs, inner_compile=inner_compile, config_patches=patches)


def _inductor_options(mode: str | None = None, options: dict | None = None) -> dict[str, Any]:
    """What `torch.compile(backend="inductor")` makes of its mode and options. Raises TypeError on other keywords."""
    return torch._TorchCompileInductorWrapper(mode, options, None).config


def _note(report: GraphReport, inputs: Iterable = ()) -> None:
    add_report(report)
    logger.info("compiled graph: %s", report)
    if report.num_windows:
        _calibrate(
            {value.device for value in inputs if isinstance(value, torch.Tensor) and value.device.type == "cuda"}
        )


def _calibrate(devices: set[torch.device]) -> None:
    """A window brings what calibration finds good, and compiled code has no prefetcher that would ask for one."""
    if not devices or torch.cuda.is_current_stream_capturing():
        return
    from ..calibration import ensure_calibrated

    for device in devices:
        ensure_calibrated(device.index)
