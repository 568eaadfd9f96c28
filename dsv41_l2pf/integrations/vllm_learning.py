"""vLLM's weights are learned in one extra warm-up forward, with compilation skipped, by a hook that sees every module."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from . import vllm_targets
from .reads import layer_tensors
from .session import Session


class _Thread(threading.local):
    uncompiled = False


_local = _Thread()


def read_by(module: torch.nn.Module) -> list[torch.Tensor]:
    """The matrices that a call of this module itself reads; its submodules are called on their own.

    Tables of which only rows are read, and experts of which only some are, are left out.
    """
    if hasattr(module, "num_embeddings") or hasattr(module, "local_num_experts"):
        return []
    # A layer with adapters runs its base layer's method without calling the layer.
    layers = [module, module.base_layer] if isinstance(getattr(module, "base_layer", None), torch.nn.Module) else [module]
    return [tensor for layer in layers for tensor in layer_tensors(layer) if tensor.dim() > 1]


@contextmanager
def _uncompiled() -> Iterator[None]:
    """vLLM's models run their Python inside, as they do for inputs that were not compiled for."""
    context = getattr(sys.modules.get(vllm_targets.FORWARD_CONTEXT), "_forward_context", None)
    before = getattr(context, "skip_compiled", False)
    _local.uncompiled = True
    if context is not None:
        context.skip_compiled = True
    try:
        yield
    finally:
        _local.uncompiled = False
        if context is not None:
            context.skip_compiled = before


@contextmanager
def _recording(session: Session) -> Iterator[None]:
    def note(module: torch.nn.Module, _inputs: Any) -> None:
        if session.records:
            session.record(lambda args, kwargs: read_by(module), (), {})

    hook = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()


def learn(session: Session, owner: Any, num_tokens: int, mode: str, run: Callable[[], Any]) -> None:
    """Runs one forward of `owner` uncompiled and records it. Never raises: the session goes off instead."""
    if session.off:
        return
    try:
        with _uncompiled(), _recording(session), session.forward(owner, num_tokens, mode):
            run()
    except Exception as error:  # noqa: BLE001  all ranks run the same code and come here alike
        session.switch_off(f"the learning forward of {num_tokens} tokens failed: {error}")


def forward_context(create: Callable) -> Callable:
    """Wraps what makes vLLM's forward contexts: those of a learning forward skip compiled code."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        context = create(*args, **kwargs)
        if _local.uncompiled:
            context.skip_compiled = True
        return context

    return wrapped
