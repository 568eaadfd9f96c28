"""vLLM: loaded by its plugin entry point `vllm.general_plugins`; active when DSV41_L2_PREFETCH is 1 or strict.

Its models are compiled, so that nothing of their Python runs in a step: weights are learned in one extra warm-up before
each capture, with compilation skipped, by a hook that sees every module that is called. Collectives are seen in compiled
code too, since it calls them as opaque operators with a Python body.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from . import vllm_targets
from .hooks import Wrapper
from .install import Installation
from .plugin import Plugin
from .reads import expert_bytes
from .session import Session, is_capturing
from .vllm_learning import forward_context, learn
from .wrapping import argument, around, on_error, pausing, resuming

# Groups whose collectives lie between a decode forward's GEMMs. Not pp, world or data parallel ones.
GROUPS = ("tp", "ep")

_INSPECTION = "vllm.model_executor.models.registry"  # the main module of a throw-away process that only looks at models

logger = logging.getLogger("vllm.dsv41_l2pf")  # vLLM shows the logs of its own name alone


class _Thread(threading.local):
    shape: tuple[str, str] | None = None  # mode and variant of the graph that model runner V1 captures


_local = _Thread()


# -- graphs -------------------------------------------------------------------------------------------------------------


def _learn_or_capture(
    session: Session, owner: Any, num_tokens: int, mode: str, captures: bool, run: Callable[[], Any]
) -> Any:
    if not captures:
        learn(session, owner, num_tokens, mode, run)
        return run()
    with session.forward(owner, num_tokens, mode, captures=True):
        return run()


def _words(query_len: int | None, num_loras: int) -> tuple[str, str]:
    """The mode of a graph, and what tells it from others of as many tokens."""
    mode = "decode" if query_len in (None, 1) else "target_verify"
    parts = [f"{query_len}-each"] if mode == "target_verify" else []
    parts += [f"{num_loras}-adapters"] if num_loras else []
    return mode, "-".join(parts)


def _is_decode_graph(manager: Any, desc: Any) -> bool:
    """Whether a decode step replays this graph. Pieces of breakable graphs and microbatches are left alone."""
    kind = desc.cg_mode.name
    if kind != manager.cudagraph_mode.decode_mode().name or getattr(desc, "num_ubatches", 1) > 1:
        return False
    return kind == "FULL" or not getattr(manager, "use_breakable_cg", False)


def _capture(session: Session) -> Wrapper:
    """Model runner V2: `create_forward_fn` makes the forwards of one shape, for its warm-up and for its capture."""

    def wrapper(capture: Callable) -> Callable:
        def wrapped(self: Any, create_forward_fn: Callable, *args: Any, **kwargs: Any) -> Any:
            def create(desc: Any, *more: Any, **named: Any) -> Callable:
                forward = create_forward_fn(desc, *more, **named)
                if not _is_decode_graph(self, desc):
                    return forward
                query_len = desc.uniform_token_count or getattr(desc, "max_query_len", None)
                mode, variant = _words(query_len, getattr(desc, "num_active_loras", 0))

                def run(graph_mode: Any) -> Any:
                    captures = graph_mode.name == "PIECEWISE" or is_capturing()
                    with session.variant(variant):
                        return _learn_or_capture(
                            session, self, desc.num_tokens, mode, captures, lambda: forward(graph_mode)
                        )

                return run

            return capture(self, create, *args, **kwargs)

        return wrapped

    return wrapper


def _capture_shape(capture: Callable) -> Callable:
    """Model runner V1: notes which graph is being warmed up and captured; the model's graph wrapper does the rest."""

    def wrapped(self: Any, desc: Any, cudagraph_runtime_mode: Any, *args: Any, **kwargs: Any) -> Any:
        decode_mode = self.compilation_config.cudagraph_mode.decode_mode().name
        if cudagraph_runtime_mode.name == decode_mode == "FULL":
            query_len = getattr(self, "uniform_decode_query_len", 1) if desc.uniform else 1
            _local.shape = _words(query_len, getattr(desc, "num_active_loras", 0))
        try:
            return capture(self, desc, cudagraph_runtime_mode, *args, **kwargs)
        finally:
            _local.shape = None

    return wrapped


def _graph_wrapper(session: Session) -> Wrapper:
    def wrapper(call: Callable) -> Callable:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            context = sys.modules[vllm_targets.FORWARD_CONTEXT]._forward_context
            if _local.shape is None or self.runtime_mode.name != "FULL" or getattr(context, "batch_descriptor", None) is None:
                return call(self, *args, **kwargs)
            mode, variant = _local.shape
            captures = context.cudagraph_runtime_mode.name == "FULL"
            with session.variant(variant):
                return _learn_or_capture(
                    session,
                    self,
                    context.batch_descriptor.num_tokens,
                    mode,
                    captures,
                    lambda: call(self, *args, **kwargs),
                )

        return wrapped

    return wrapper


def _join(session: Session) -> Wrapper:
    """The last call inside every capture of vLLM: nothing may be outstanding when a graph or a piece of one ends."""

    def wrapper(join: Callable) -> Callable:
        def wrapped(self: Any) -> Any:
            result = join(self)
            if session.in_forward:
                session.join()
            return result

        return wrapped

    return wrapper


# -- install ------------------------------------------------------------------------------------------------------------


def _load_model(session: Session, installation: Installation) -> Wrapper:
    def wrapper(load_model: Callable) -> Callable:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = load_model(self, *args, **kwargs)
            if session.config.strict and installation.hooks and installation.hooks.failed:
                raise SystemExit(f"dsv41_l2pf (strict): {installation.summary()}")
            session.know(self.get_model())
            session.know(getattr(self, "get_draft_model", lambda: None)())
            logger.info("dsv41_l2pf: %s; model %s", installation.summary(), type(self.get_model()).__name__)
            return result

        return wrapped

    return wrapper


def _warmed_up(session: Session) -> Wrapper:
    def wrapper(warm_up: Callable) -> Callable:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = warm_up(self, *args, **kwargs)
            if not session.off and not session.has_graphs():
                logger.warning(
                    "dsv41_l2pf: prefetching is off: no decode graph was captured (enforce_eager, cudagraph_mode NONE, "
                    "or breakable pieces)"
                )
            return result

        return wrapped

    return wrapper


def _in_group(args: tuple, kwargs: dict) -> bool:
    return str(getattr(args[0], "unique_name", "")).split(":")[0] in GROUPS


def _wakes_weights(args: tuple, kwargs: dict) -> bool:
    tags = args[1] if len(args) > 1 else kwargs.get("tags")
    return tags is None or "weights" in tags


def _wrappers(session: Session, installation: Installation) -> Mapping[str, Wrapper]:
    sent = argument(1, "input_")

    def collective(kind: str) -> Wrapper:
        return lambda function: session.collective(function, kind, sent, _in_group)

    def experts(args: tuple, kwargs: dict) -> int:
        layer = args[0]
        num_tokens = argument(1, "x")(args, kwargs).shape[0]
        return expert_bytes(layer, num_tokens, layer.local_num_experts, layer.global_num_experts)

    return {
        "forward_context": forward_context,
        "load_model": _load_model(session, installation),
        "warmed_up": _warmed_up(session),
        "capture": _capture(session),
        "capture_shape": _capture_shape,
        "graph_wrapper": _graph_wrapper(session),
        "join": _join(session),
        "all_reduce": collective("all_reduce"),
        "all_gather": collective("all_gather"),
        "reduce_scatter": collective("reduce_scatter"),
        "fused_all_reduce": lambda function: session.collective(function, "all_reduce", argument(0, "input")),
        "experts": lambda function: session.streaming(function, experts),
        "sleep": pausing(session),
        "wake": resuming(session, _wakes_weights),
        "update": around(session.update),
        "start": pausing(session),
        "chunk": on_error(session.resume),
        "finish": resuming(session),
    }


def _is_inspection() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", "") == _INSPECTION


plugin = Plugin("vllm", logger, lambda: vllm_targets.TARGETS, vllm_targets.ESSENTIAL, _wrappers)


def register() -> None:
    """The plugin's entry point, which leaves vLLM's inspection process alone; see `Plugin.register`."""
    if not _is_inspection():
        plugin.register()


def session() -> Session | None:
    """The session of this process, None when the plugin is not active."""
    return plugin.session


def unregister() -> None:
    """Takes every hook off again; see `Plugin.unregister`."""
    plugin.unregister()
