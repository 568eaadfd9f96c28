"""The hook on one model's forward."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from .compiled import COMPILED_WITH_HOOK, hidden_weights
from .learn import learn_mode
from .tokens import token_counter
from .weights import Weight, WeightMap

if TYPE_CHECKING:
    from .prefetcher import Prefetcher

DECODE_LIKE = ("decode", "target_verify", "draft_extend")


class Attachment:
    """Replaces the `forward` attribute of a model instance, and puts it back.

    Both `model(...)` and `model.forward(...)` go through it. The model owns it, through the hook.
    """

    def __init__(self, prefetcher: Prefetcher, model: torch.nn.Module, mode: str) -> None:
        if mode.partition("/")[0] not in DECODE_LIKE:
            allowed = ", ".join(DECODE_LIKE)
            raise ValueError(f"mode: expected one of {allowed}, with or without a /variant, got {mode!r}")
        earlier = getattr(model.forward, "l2pf_attachment", None)  # functools.wraps carries it through later wrappers
        if earlier is not None and earlier.installed:
            raise ValueError(f"this {type(model).__name__} is attached to a prefetcher already: detach() that first")
        self.installed = True
        self.reason = ""
        self.prefetcher = prefetcher
        self.mode = mode
        self.model_id = prefetcher.model_id(model)
        self.weights = WeightMap(model)
        self._model = weakref.ref(model)
        self._earlier = model.__dict__.get("forward")
        self._hook = weakref.ref(hook := Hook(self, model))
        model.forward = hook

    def remove(self) -> None:
        """Restores the model's forward. If somebody wrapped it after us, our hook stays and passes everything on."""
        self.installed = False
        model = self._model()
        if model is None or model.__dict__.get("forward") is not self._hook():
            return
        if self._earlier is None:
            del model.forward
        else:
            model.forward = self._earlier

    def weights_to_learn(self, model: torch.nn.Module) -> WeightMap | None:
        """The model's weights as they are now; None in a capturing forward, which learns nothing."""
        # Asking would initialise CUDA in a process that does not use it.
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return None
        self.weights.refresh(model)
        return self.weights

    def hidden_weights(self) -> list[Weight]:
        """The weights of compiled parts of the model that no operator was seen to read."""
        model = self._model()
        return [] if model is None else hidden_weights(model, self.weights.weights(), self.prefetcher.sightings)


class Hook:
    """What `model.forward` is while the model is attached.

    An object and not a function, so that a deep copy of the model gets a forward of its own: a copied function would
    run the weights of the original.
    """

    def __init__(self, attachment: Attachment, model: torch.nn.Module) -> None:
        self._original = model.forward
        functools.update_wrapper(self, self._original)
        self.l2pf_attachment = attachment
        self._model = model
        self._max_tokens = attachment.prefetcher.config.max_tokens
        self._count = token_counter(self._original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            self.l2pf_attachment.reason = COMPILED_WITH_HOOK
            return self._original(*args, **kwargs)
        if not self.l2pf_attachment.installed:
            return self._original(*args, **kwargs)
        num_tokens = self._count(args, kwargs)
        if not 0 < num_tokens <= self._max_tokens:
            return self._original(*args, **kwargs)
        attachment, prefetcher = self.l2pf_attachment, self.l2pf_attachment.prefetcher
        with prefetcher.forward(num_tokens, attachment.mode, self._model) as counts:
            if not counts:
                return self._original(*args, **kwargs)
            with learn_mode(prefetcher.windows, attachment.weights_to_learn(self._model), prefetcher.sightings):
                return self._original(*args, **kwargs)

    def __deepcopy__(self, memo: dict) -> Any:
        copied = memo.get(id(self._model))
        return self if copied is None else type(copied).forward.__get__(copied)
