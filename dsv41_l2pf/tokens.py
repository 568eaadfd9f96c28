"""How many tokens a call of a model's forward carries."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

_NAMES = ("input_ids", "inputs_embeds", "hidden_states")


def num_tokens_of(tensor: torch.Tensor) -> int:
    """Integers are token ids, one each; anything else is activations of shape [..., hidden]."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.numel()
    return tensor.numel() // max(tensor.shape[-1], 1) if tensor.dim() else 1


def token_counter(forward: Callable) -> Callable[[tuple, dict], int]:
    """A function of (args, kwargs) of `forward` that returns its number of tokens, 0 when there is no tensor.

    It looks at input_ids, inputs_embeds and hidden_states, by name or position, and then at the first tensor argument.
    """
    try:
        parameters = list(inspect.signature(forward).parameters)
    except (TypeError, ValueError):
        parameters = []
    positions = [(name, parameters.index(name) if name in parameters else None) for name in _NAMES]

    def count(args: tuple, kwargs: dict[str, Any]) -> int:
        for name, position in positions:
            value = kwargs.get(name)
            if value is None and position is not None and position < len(args):
                value = args[position]
            if isinstance(value, torch.Tensor):
                return num_tokens_of(value)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor):
                return num_tokens_of(value)
        return 0

    return count
