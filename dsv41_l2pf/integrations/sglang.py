"""SGLang: loaded by its plugin entry point `sglang.srt.plugins`; active when DSV41_L2_PREFETCH is 1 or strict.

The functions are patched here and not through SGLang's HookRegistry: that one imports every target at once, in the parent
and detokenizer processes too, logs and swallows a missing target, and cannot take hooks off.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import b12x, b12x_targets, sglang_targets
from .graph_pair import Kept, capture_pair
from .hooks import Wrapper
from .install import Installation
from .plugin import Plugin
from .reads import arguments, expert_bytes, fp8_tensors, layer_tensors, readable
from .session import BRACKETED, Session
from .targets import Target
from .wrapping import after, argument, around, before, pausing, resuming

# Groups whose collectives lie between a decode forward's GEMMs. Not pp, world, dcp or data parallel ones.
GROUPS = ("tp", "attention_tp", "shared_experts_tp", "moe_tp", "moe_ep")

# SGLang's predicate -> our mode. Verify first: it also counts as an extend there.
_MODES = (
    ("is_target_verify", "target_verify"),
    ("is_decode", "decode"),
    ("is_draft_extend_v2", "draft_extend"),
    ("is_draft_extend", "draft_extend"),
)

logger = logging.getLogger("dsv41_l2pf")


def mode_of(forward_batch: Any) -> str:
    """Our word for the batch's forward mode, '' when it is not decode-like."""
    mode = getattr(forward_batch, "forward_mode", None)
    for predicate, word in _MODES:
        ask = getattr(mode, predicate, None)
        if ask is not None and ask():
            return word
    return ""


def _bracket(session: Session, forward: Callable, model_of: Callable[[tuple], torch.nn.Module], first: int) -> Callable:
    """`forward(input_ids, positions, forward_batch, ...)` as one forward. first: the position of input_ids."""

    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        # A compiled forward is bracketed by whoever calls it: see _capture_shape.
        if torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        batch = args[first + 2] if len(args) > first + 2 else kwargs.get("forward_batch")
        input_ids = args[first] if len(args) > first else kwargs.get("input_ids")
        mode = mode_of(batch)
        if not mode or not isinstance(input_ids, torch.Tensor):
            return forward(*args, **kwargs)
        with session.forward(model_of(args), input_ids.shape[0], mode):
            return forward(*args, **kwargs)

    setattr(wrapped, BRACKETED, True)
    return wrapped


def bracket_model(session: Session, model: torch.nn.Module) -> None:
    """Brackets this model's forward, unless a model inside it is bracketed by name."""
    loaded = sys.modules.get(sglang_targets.DEEPSEEK_V4)
    named = getattr(loaded, "DeepseekV4Model", None)
    if named is not None and hasattr(named.forward, BRACKETED):
        if any(isinstance(module, named) for module in model.modules()):
            return
    if not hasattr(model.forward, BRACKETED):
        model.forward = _bracket(session, model.forward, lambda args: model, first=0)


def _load_model(session: Session, installation: Installation) -> Wrapper:
    def wrapper(load_model: Callable) -> Callable:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = load_model(self, *args, **kwargs)
            if session.config.strict and installation.hooks and installation.hooks.failed:
                raise SystemExit(f"dsv41_l2pf (strict): {installation.summary()}")
            bracket_model(session, self.model)
            logger.info("dsv41_l2pf: %s; model %s", installation.summary(), type(self.model).__name__)
            return result

        return wrapped

    return wrapper


def _capture_shape(session: Session) -> Wrapper:
    def wrapper(capture: Callable) -> Callable:
        def wrapped(self: Any, size: int, forward: Callable, *args: Any, **kwargs: Any) -> Any:
            names = ("stream_idx", "variant_label", "attention_variant")
            given = {**dict(zip(names, args)), **kwargs}
            variant = "-".join(f"{given[name]}" for name in names if given.get(name) is not None)
            model = self.model_runner.model
            if forward != model.forward:
                # Under --enable-torch-compile this is the compiled forward, and nothing in it can bracket itself.
                forward = _bracket(session, forward, lambda _args: model, first=0)
            with session.variant(variant):
                return capture(self, size, forward, *args, **kwargs)

        return wrapped

    return wrapper


def _capture_graph(session: Session) -> Wrapper:
    """`FullCudaGraphBackend` keeps a graph for each shape, and what it returns."""

    def wrapper(capture_one: Callable) -> Callable:
        def wrapped(self: Any, shape_key: Any, forward_fn: Callable, *args: Any, **kwargs: Any) -> None:
            def capture() -> Kept:
                capture_one(self, shape_key, forward_fn, *args, **kwargs)  # two warm-ups and the capture
                return Kept(self._graphs[shape_key], self._outputs[shape_key])

            def put(kept: Kept) -> None:
                self._graphs[shape_key], self._outputs[shape_key] = kept

            capture_pair(session, capture, put)

        return wrapped

    return wrapper


def _in_group(args: tuple, kwargs: dict) -> bool:
    return str(getattr(args[0], "unique_name", "")).split(":")[0] in GROUPS


def _has_peers(args: tuple, kwargs: dict) -> bool:
    return _in_group(args, kwargs) and args[0].world_size > 1


def _takes_fused(args: tuple, kwargs: dict) -> bool:
    """Whether FlashInfer's fused all-reduce and norm has its workspace: without one it declines."""
    names = ("input_tensor", "residual", "weight")
    tensors = [argument(i, name)(args, kwargs) for i, name in enumerate(names)]
    manager = sys.modules[sglang_targets.FUSION]._get_workspace_manager(kwargs.get("use_attn_tp_group", True))
    return manager.workspace is not None and all(tensor.is_contiguous() for tensor in tensors)


def _concerns_weights(args: tuple, kwargs: dict) -> bool:
    tags = getattr(argument(1, "recv_req")(args, kwargs), "tags", None)
    return not tags or "weights" in tags


def _wrappers(session: Session, installation: Installation) -> Mapping[str, Wrapper]:
    def collective(kind: str, input_of: Callable, accepts: Callable) -> Wrapper:
        return lambda function: session.collective(function, kind, input_of, accepts)

    def reading(reads: Callable) -> Wrapper:
        return lambda function: session.reading(function, reads)

    sent, second_sent = argument(1, "input_"), argument(2, "input")
    layer_of, x_of = argument(1, "layer"), argument(2, "x")
    tokens_of, lm_head_of = argument(1, "hidden_states"), argument(2, "lm_head")

    def fp8(args: tuple, kwargs: dict) -> list[torch.Tensor]:
        return fp8_tensors(args[0], layer_of(args, kwargs), x_of(args, kwargs))

    def experts(args: tuple, kwargs: dict) -> int:
        layer = args[0]
        num_tokens = tokens_of(args, kwargs).shape[0]
        return expert_bytes(layer, num_tokens, layer.num_local_experts, layer.num_experts)

    return {
        "load_model": _load_model(session, installation),
        "model_forward": lambda function: _bracket(session, function, lambda args: args[0], first=1),
        "capture_shape": _capture_shape(session),
        "capture_graph": _capture_graph(session),
        "dummy": around(session.suspended),
        "all_reduce": collective("all_reduce", sent, _has_peers),
        "all_reduce_body": collective("all_reduce", sent, _in_group),
        "all_gather": collective("all_gather", sent, _has_peers),
        "all_gather_into": collective("all_gather", second_sent, _in_group),
        "reduce_scatter": collective("reduce_scatter", sent, _has_peers),
        "reduce_scatter_into": collective("reduce_scatter", second_sent, _in_group),
        "fused_all_reduce": collective("all_reduce", argument(0, "input_tensor"), _takes_fused),
        "linear": reading(lambda args, kwargs: layer_tensors(layer_of(args, kwargs))),
        "fp8_linear": reading(fp8),
        "mxfp8_function": reading(arguments(1, 2, names=("weight", "weight_scale"))),
        "gate": reading(lambda args, kwargs: readable((args[0].weight,))),
        "second_argument": reading(arguments(1, names=("w",))),
        "wo_a": reading(arguments(1, names=("wo_a",))),
        "wo_a_fp8": reading(arguments(2, 3, names=("weight", "weight_scale"))),
        "second_weight": reading(arguments(1, names=("weight",))),
        "lm_head": reading(lambda args, kwargs: layer_tensors(lm_head_of(args, kwargs))),
        "experts": lambda function: session.streaming(function, experts),
        "update": around(session.update),
        "recapture": around(session.resumed),
        "pause": before(session.pause),
        "resume": after(session.resume),
        "sleep": pausing(session, _concerns_weights),
        "wake": resuming(session, _concerns_weights),
        **b12x.wrappers(session),
    }


def _targets() -> tuple[Target, ...]:
    return sglang_targets.TARGETS + (b12x_targets.TARGETS if b12x.is_available() else ())


plugin = Plugin("sglang", logger, _targets, sglang_targets.ESSENTIAL, _wrappers)


def register() -> None:
    """The plugin's entry point; see `Plugin.register`."""
    plugin.register()


def session() -> Session | None:
    """The session of this process, None when the plugin is not active."""
    return plugin.session


def unregister() -> None:
    """Takes every hook off again; see `Plugin.unregister`."""
    plugin.unregister()
