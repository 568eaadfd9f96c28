"""vLLM: loaded by its plugin entry point `vllm.general_plugins`; active when DSV41_L2_PREFETCH is 1 or strict.

Its models are compiled, so that nothing of their Python runs in a step: weights are learned in one extra warm-up before
each capture, with compilation skipped, by a hook that sees every module that is called. Collectives are seen in compiled
code too, since it calls them as opaque operators with a Python body.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

from . import vllm_graphs, vllm_targets
from .hooks import Wrapper
from .install import Installation
from .plugin import Plugin
from .reads import expert_bytes
from .session import Session
from .vllm_learning import forward_context
from .wrapping import argument, around, on_error, pausing, resuming

# Groups whose collectives lie between a decode forward's GEMMs. Not pp, world or data parallel ones.
GROUPS = ("tp", "ep")

_INSPECTION = "vllm.model_executor.models.registry"  # the main module of a throw-away process that only looks at models

logger = logging.getLogger("vllm.dsv41_l2pf")  # vLLM shows the logs of its own name alone


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
        "capture": vllm_graphs.capturing(session),
        "capture_shape": vllm_graphs.capturing_shape,
        "graph_wrapper": vllm_graphs.graph_wrapper(session),
        "join": vllm_graphs.joining(session),
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
