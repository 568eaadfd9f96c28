"""What attaching to a model can and cannot see of its compiled parts."""

from __future__ import annotations

import torch

from .experts import is_expert
from .sightings import Sightings
from .weights import Weight

COMPILED_WITH_HOOK = (
    "torch.compile took the model with its hook inside: attach what torch.compile returned, or use backend='dsv41'"
)


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether torch.compile compiled this module itself, in any of its three ways."""
    return (
        module._compiled_call_impl is not None  # module.compile()
        or hasattr(module, "_orig_mod")  # torch.compile(module)
        or hasattr(module.forward, "_torchdynamo_orig_callable")  # torch.compile(module.forward), or as a decorator
    )


def hidden_weights(model: torch.nn.Module, weights: list[Weight], sightings: Sightings) -> list[Weight]:
    """The weights of compiled modules that no operator was seen to read. Experts may just not have been chosen."""
    prefixes = tuple(f"{name}." if name else "" for name, module in model.named_modules() if is_compiled(module))
    unseen = sightings.unseen({weight.name for weight in weights})
    return [
        weight
        for weight in weights
        if weight.name in unseen and weight.name.startswith(prefixes) and not is_expert(weight.name)
    ]
