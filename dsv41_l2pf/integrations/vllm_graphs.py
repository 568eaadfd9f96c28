"""vLLM's whole decode graphs: learned before each capture, captured with their windows, and paired where they are tuned.

Model runner V2 keeps its graphs in a `CudaGraphManager`; the model that V1 runs is in a `CUDAGraphWrapper`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from . import vllm_targets
from .graph_pair import GraphPair, Kept, capture_pair, say_not_tuned, to_tune
from .hooks import Wrapper
from .session import Session, SignatureKey, is_capturing
from .vllm_learning import learn


class _Thread(threading.local):
    shape: tuple[str, str] | None = None  # mode and variant of the graph that model runner V1 captures


_local = _Thread()


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


def capturing(session: Session) -> Wrapper:
    """Model runner V2: `create_forward_fn` makes the forwards of one shape, for its warm-up and for its capture."""

    def wrapper(capture: Callable) -> Callable:
        def wrapped(self: Any, create_forward_fn: Callable, *args: Any, **kwargs: Any) -> Any:
            captured: dict[Any, list[SignatureKey]] = {}

            def create(desc: Any, *more: Any, **named: Any) -> Callable:
                forward = create_forward_fn(desc, *more, **named)
                if not _is_decode_graph(self, desc):
                    return forward
                query_len = desc.uniform_token_count or getattr(desc, "max_query_len", None)
                mode, variant = _words(query_len, getattr(desc, "num_active_loras", 0))

                def run(graph_mode: Any) -> Any:
                    captures = graph_mode.name == "PIECEWISE" or is_capturing()
                    with session.variant(variant), session.noting_captures() as captured[desc]:
                        return _learn_or_capture(
                            session, self, desc.num_tokens, mode, captures, lambda: forward(graph_mode)
                        )

                return run

            result = capture(self, create, *args, **kwargs)
            to_pair = _to_pair(session, self, captured)
            if to_pair:
                _capture_pairs(session, self, to_pair, lambda: capture(self, create_forward_fn, *args, **kwargs))
            return result

        return wrapped

    return wrapper


def _to_pair(session: Session, manager: Any, captured: Mapping[Any, list[SignatureKey]]) -> dict[Any, dict]:
    """The graphs to be captured once more, and their signatures; none when vLLM only finds out how much memory it needs."""
    if getattr(manager, "_max_full_descs_to_capture", None) is not None:
        return {}
    signatures = {desc: to_tune(session, keys) for desc, keys in captured.items() if desc in manager.graphs}
    return {desc: signature for desc, signature in signatures.items() if signature is not None}


def _capture_pairs(session: Session, manager: Any, to_pair: dict[Any, dict], again: Callable[[], Any]) -> None:
    """again: captures what the manager lists, into the graphs of the manager."""
    graphs, listed = manager.graphs, manager._capture_descs
    manager.graphs, manager._capture_descs = {}, {next(iter(to_pair)).cg_mode: list(to_pair)}
    try:
        with session.suspended():
            again()
        without = manager.graphs
    except Exception as error:  # noqa: BLE001  most likely memory: the server goes on with the graphs it has
        say_not_tuned(session, next(iter(to_pair.values())), error)
        return
    finally:
        manager.graphs, manager._capture_descs = graphs, listed
    for desc, signature in to_pair.items():

        def put(kept: Kept, desc: Any = desc) -> None:
            graphs[desc] = kept.graph

        GraphPair(session, signature, Kept(graphs[desc]), Kept(without[desc]), put)


def capturing_shape(capture: Callable) -> Callable:
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


def graph_wrapper(session: Session) -> Wrapper:
    def wrapper(call: Callable) -> Callable:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            context = sys.modules[vllm_targets.FORWARD_CONTEXT]._forward_context
            if _local.shape is None or self.runtime_mode.name != "FULL" or getattr(context, "batch_descriptor", None) is None:
                return call(self, *args, **kwargs)
            mode, variant = _local.shape
            captures = context.cudagraph_runtime_mode.name == "FULL"
            desc, entries = context.batch_descriptor, self.concrete_cudagraph_entries

            def run() -> Any:
                return _learn_or_capture(
                    session, self, desc.num_tokens, mode, captures, lambda: call(self, *args, **kwargs)
                )

            with session.variant(variant):
                if captures and getattr(entries.get(desc), "cudagraph", None) is None:
                    return _capture_pair(session, entries, desc, run)
                return run()

        return wrapped

    return wrapper


def _capture_pair(session: Session, entries: dict[Any, Any], desc: Any, run: Callable[[], Any]) -> Any:
    """Captures by `run` what `entries` keeps under `desc`, and returns what the first capture returned."""
    outputs = []

    def capture() -> Kept:
        if desc in entries:
            entries[desc].cudagraph = None  # else it would be replayed
        outputs.append(run())
        return Kept(entries[desc].cudagraph, entries[desc].output)

    def put(kept: Kept) -> None:
        entries[desc].cudagraph, entries[desc].output = kept

    capture_pair(session, capture, put)
    return outputs[0]


def joining(session: Session) -> Wrapper:
    """The last call inside every capture of vLLM: nothing may be outstanding when a graph or a piece of one ends."""

    def wrapper(join: Callable) -> Callable:
        def wrapped(self: Any) -> Any:
            result = join(self)
            if session.in_forward:
                session.join()
            return result

        return wrapped

    return wrapper
