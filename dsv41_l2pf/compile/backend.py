"""The torch.compile backend: places windows, then hands the graph to Inductor or to another backend."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from ..config import Config
from .names import has_subclasses, weight_name
from .place import place_in_aten, place_in_dynamo
from .report import GraphReport, add_report

logger = logging.getLogger("dsv41_l2pf")


class CompileBackend:
    """What `torch.compile(model, backend=...)` takes. See `compile_backend`."""

    __name__ = "dsv41"  # torch.compile shows it

    def __init__(self, inner: str | Callable, config: Config | None) -> None:
        self._inner = inner
        self._config = config

    def __call__(self, gm: GraphModule, example_inputs: list, **kwargs: Any) -> Callable:
        config = Config.from_env() if self._config is None else self._config
        if has_subclasses(gm.graph):
            return self._compile_subclasses(gm, example_inputs, config, kwargs)
        _note(place_in_dynamo(gm, config))
        if self._inner == "inductor":
            return torch._TorchCompileInductorWrapper(**_modes(kwargs))(gm, example_inputs)
        return _look_up(self._inner)(gm, example_inputs, **kwargs)

    def reset(self) -> None:
        """What torch.compiler.reset() asks of a backend."""
        if self._inner == "inductor":
            torch._TorchCompileInductorWrapper(None, {"triton.cudagraphs": True}, None).reset()
        elif hasattr(self._inner, "reset"):
            self._inner.reset()

    def _compile_subclasses(self, gm: GraphModule, example_inputs: list, config: Config, kwargs: dict) -> Callable:
        """The collectives of DTensor, and the reads of quantised tensors, show only behind AOTAutograd."""
        if self._inner != "inductor":
            _note(GraphReport(reason="tensor subclasses hide its operators; only inner='inductor' sees through them"))
            return _look_up(self._inner)(gm, example_inputs, **kwargs)
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        names = [weight_name(node) for node in gm.graph.find_nodes(op="placeholder")]

        def inner_compile(aten: GraphModule, inputs: list, **details: Any) -> Any:
            if not details.get("is_backward"):
                _note(place_in_aten(aten, list(details.get("static_input_idxs", ())), names, config))
            return compile_fx_inner(aten, inputs, **details)

        patches = torch._TorchCompileInductorWrapper(**_modes(kwargs)).config
        # AOTAutograd's cache sees only Dynamo's graph: without this it would return code with another config's windows.
        tag = f"{torch.compiler.config.cache_key_tag}|dsv41_l2pf {config}"
        with torch.compiler.config.patch(cache_key_tag=tag):
            return compile_fx(gm, example_inputs, inner_compile=inner_compile, config_patches=patches)


def compile_backend(inner: str | Callable = "inductor", config: Config | None = None) -> CompileBackend:
    """A backend for torch.compile that opens a window around every collective of a graph.

    inner: the backend that compiles the edited graph, by name or as a callable; `mode=` and `options=` go to it.
    config: the settings; None reads the environment at every compilation.
    """
    return CompileBackend(inner, config)


def dsv41(gm: GraphModule, example_inputs: list, **kwargs: Any) -> Callable:
    """`torch.compile(model, backend="dsv41")`: `compile_backend()` under a name that torch.compile knows."""
    return compile_backend()(gm, example_inputs, **kwargs)


def _modes(kwargs: dict) -> dict:
    unknown = set(kwargs) - {"mode", "options"}
    if unknown:
        raise TypeError(f"backend dsv41: expected mode= and options=, got {', '.join(sorted(unknown))}")
    return {"mode": kwargs.get("mode"), "options": kwargs.get("options"), "dynamic": None}


def _look_up(inner: str | Callable) -> Callable:
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(inner)


def _note(report: GraphReport) -> None:
    add_report(report)
    logger.info("compiled graph: %s", report)
