"""Watches the operators of one forward: numbers its collectives and records the weights that they are followed by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .collectives import input_of, is_asynchronous, output_of
from .roles import Role, role_of
from .weights import WeightMap, storage_key
from .windows import Windows

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_TRACERS = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL"))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


class LearnMode(TorchDispatchMode):
    """Active inside one forward, between `begin_forward` and `end_forward`.

    windows: where windows are opened and closed. weights: the model's weights, or None when nothing is recorded
    (a capturing forward). skipped: receives the names of weights of which only rows were read.
    """

    supports_higher_order_operators = True

    def __init__(self, windows: Windows, weights: WeightMap | None, skipped: set[str]) -> None:
        super().__init__()
        self._windows = windows
        self._weights = weights
        self._skipped = skipped
        self._pending: Any = None  # the output of a collective whose window is still open
        self._pending_keys: frozenset[int] = frozenset()
        self._explicit = False  # the model brackets this collective itself

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # Otherwise Dynamo runs compiled parts of the model eagerly while this mode is active.
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        for tracer in _TRACERS:
            if torch._C._get_dispatch_mode(tracer) is not None:
                return func(*args, **kwargs)  # nothing runs: torch.compile traces, or DTensor asks for a sharding
        for cls in types:
            if cls not in _PLAIN:
                return NotImplemented  # DTensor and its like unwrap themselves, and their inner operators come here
        role = role_of(func)
        if role.collective is not None:
            return self._collective(role, func, args, kwargs)
        if role.is_wait:
            result = func(*args, **kwargs)
            if self._touches_pending(args, kwargs):
                self._close(result)
            return result
        if role.marker:
            self._close_pending()
            self._explicit = role.marker == "collective_begin"
        if role.reads:
            if self._pending is not None and self._touches_pending(args, kwargs):
                self._close_pending()
            if self._weights is not None:
                self._record(role, args, kwargs)
        result = func(*args, **kwargs)
        if role.view_or_copy and self._weights is not None and storage_key(result) != storage_key(args[0]):
            self._record(role, args, kwargs)
        return result

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        if exception[0] is None:
            self._close_pending()

    def _collective(self, role: Role, func: Any, args: tuple, kwargs: dict) -> Any:
        if self._explicit:
            return func(*args, **kwargs)
        self._close_pending()
        opened = self._windows.open(input_of(role.collective, func, args, kwargs), role.collective.kind)
        result = func(*args, **kwargs)
        if opened:
            output = output_of(role.collective, func, args, kwargs, result)
            if is_asynchronous(role.collective, func, args, kwargs):
                self._pending = output
                self._pending_keys = frozenset(map(storage_key, _tensors(output)))
            else:
                self._windows.close(output)
        return result

    def _touches_pending(self, args: tuple, kwargs: dict) -> bool:
        if self._pending is None:
            return False
        values = (args, tuple(kwargs.values()))
        return any(storage_key(tensor) in self._pending_keys for tensor in _tensors(values))

    def _close_pending(self) -> None:
        if self._pending is not None:
            self._close(self._pending)

    def _close(self, output: Any) -> None:
        self._pending, self._pending_keys = None, frozenset()
        self._windows.close(output)

    def _record(self, role: Role, args: tuple, kwargs: dict) -> None:
        read = []
        for key, value in (*enumerate(args), *kwargs.items()):
            if key in role.written:
                continue
            for tensor in _tensors(value):
                name = self._weights.name_of(tensor)
                if name is None:
                    continue
                if role.row_lookup and key == 0:
                    self._skipped.add(name)
                else:
                    read.append(tensor)
        if read:
            self._windows.record(read)
