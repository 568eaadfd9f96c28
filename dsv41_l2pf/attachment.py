"""The hook on one model's forward."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from .checks import rejected, require
from .compiled import COMPILED_WITH_HOOK, hidden_weights
from .learn import learn_mode
from .tokens import token_counter
from .watching import Watching
from .weights import Weight, WeightMap

if TYPE_CHECKING:
    from .prefetcher import Prefetcher

DECODE_LIKE = ("decode", "target_verify", "draft_extend")


class Attachment:
    """Replaces the `forward` attribute of a model instance, and puts it back.

    Both `model(...)` and `model.forward(...)` go through it. The model owns it, through the hook.
    """

    @staticmethod
    def check(model: torch.nn.Module, mode: str) -> None:
        """Raises ValueError when `model` cannot be attached, or not in this mode."""
        require(isinstance(model, torch.nn.Module), "model", "a torch.nn.Module", model)
        if not isinstance(mode, str) or mode.partition("/")[0] not in DECODE_LIKE:
            raise rejected("mode", f"one of {', '.join(DECODE_LIKE)}, with or without a /variant", mode)
        earlier = getattr(model.forward, "l2pf_attachment", None)  # functools.wraps carries it through later wrappers
        if earlier is not None and earlier.installed:
            name = type(model).__name__
            raise ValueError(f"model: expected one that is not attached, got a {name} that is: detach() that first")

    def __init__(self, prefetcher: Prefetcher, model: torch.nn.Module, mode: str) -> None:
        self.check(model, mode)
        self.installed = True
        self.reason = ""
        self.prefetcher = prefetcher
        self.mode = mode
        self.model_id = prefetcher.model_id(model)
        self.weights = WeightMap(model)
        self.watching: dict[int, Watching] = {}  # by number of tokens
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

    def watches(self, num_tokens: int) -> bool:
        """Whether the forward that begins is watched: on a GPU, in eager code, only while that pays."""
        if not self.weights.on_gpu or self.prefetcher.is_measuring or torch.cuda.is_current_stream_capturing():
            return True
        watching = self.watching.setdefault(num_tokens, Watching())
        return watching.begins(lambda all: not (self.weights.is_current() if all else self.weights.looks_current()))

    def weights_to_learn(self, model: torch.nn.Module) -> WeightMap | None:
        """The model's weights as they are now; None in a capturing forward, which learns nothing."""
        # Asking would initialise CUDA in a process that does not use it.
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return None
        self.weights.refresh(model)
        return self.weights

    def unwatched(self) -> dict[int, float]:
        """By number of tokens, what watched forwards took of unwatched ones, where they are watched no more."""
        return {num_tokens: found.ratio for num_tokens, found in self.watching.items() if found.is_over}

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
        if self.l2pf_attachment.prefetcher.is_paused or not self.l2pf_attachment.installed:
            return self._original(*args, **kwargs)
        num_tokens = self._count(args, kwargs)
        if not 0 < num_tokens <= self._max_tokens:
            return self._original(*args, **kwargs)
        attachment, prefetcher = self.l2pf_attachment, self.l2pf_attachment.prefetcher
        if not attachment.watches(num_tokens):
            return self._original(*args, **kwargs)
        with prefetcher.forward(num_tokens, attachment.mode, self._model) as counts:
            if not counts:
                return self._original(*args, **kwargs)
            with learn_mode(prefetcher.windows, attachment.weights_to_learn(self._model), prefetcher.sightings):
                return self._original(*args, **kwargs)

    def __deepcopy__(self, memo: dict) -> Any:
        copied = memo.get(id(self._model))
        return self if copied is None else type(copied).forward.__get__(copied)
