"""Watches the operators of one forward: numbers its collectives and records the weights that they are followed by."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .collectives import input_of, is_asynchronous, output_of
from .experts import is_routed
from .roles import Role, role_of
from .sightings import Sightings
from .weights import WeightMap, storage_key
from .windows import Windows

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_TRACERS = tuple(getattr(torch._C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL"))
_num_modes = torch._C._len_torch_dispatch_stack


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _is_tracing() -> bool:
    """Whether nothing runs: torch.compile traces, or DTensor asks for a sharding."""
    return any(torch._C._get_dispatch_mode(tracer) is not None for tracer in _TRACERS)


class LearnMode(TorchDispatchMode):
    """Active inside one forward, between `begin_forward` and `end_forward`.

    windows: where windows are opened and closed. weights: the model's weights, or None when nothing is recorded
    (a capturing forward). sightings: receives the names of the weights that were read, and how.

    Every operator of an eager forward comes through `__torch_dispatch__`: what most of them need is short there.
    """

    supports_higher_order_operators = True

    def __init__(self, windows: Windows, weights: WeightMap | None, sightings: Sightings) -> None:
        super().__init__()
        self._windows = windows
        self._weights = weights
        self._sightings = sightings
        self._num_modes_outside = 0
        self._pending: Any = None  # the output of a collective whose window is still open
        self._pending_keys: frozenset[int] = frozenset()
        self._explicit = False  # the model brackets this collective itself
        self._num_collectives = 0
        self._static: tuple[int, list[torch.Tensor]] = (0, [])  # since window_begin: collectives so far, weights

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        # Otherwise Dynamo runs compiled parts of the model eagerly while this mode is active.
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch's own way to do what `learn_mode` does takes as long, at every operator, as everything else here.
        return False

    def __enter__(self) -> LearnMode:
        self._num_modes_outside = -1 if _is_tracing() else _num_modes()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        if exception[0] is None:
            self._close_pending()
            self._sightings.complete |= self._weights is not None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if _num_modes() != self._num_modes_outside and _is_tracing():
            return func(*args, **kwargs)
        for cls in types:
            if cls not in _PLAIN:
                return NotImplemented  # DTensor and its like unwrap themselves, and their inner operators come here
        role = role_of(func)
        if not role.reads:
            return self._run_other(role, func, args, kwargs) if role.is_special else func(*args, **kwargs)
        if self._pending is not None and self._touches_pending(args, kwargs):
            self._close_pending()
        routed = ()
        if self._weights is not None and self._weights.may_be_among(args, kwargs):
            routed = self._record(role, args, kwargs)
        result = func(*args, **kwargs)
        for tensor in routed:
            self._windows.record_unplanned(_bytes_of_routed(role, tensor, args, result))
        return result

    def _run_other(self, role: Role, func: Any, args: tuple, kwargs: dict) -> Any:
        """Runs an operator that reads nothing, or not always."""
        if role.collective is not None:
            return self._run_collective(role, func, args, kwargs)
        if role.marker:
            self._mark(role.marker, args)
        if role.marker == "collective_begin":
            self._windows.tell("window_opens", args[1])
        result = func(*args, **kwargs)
        if role.marker == "collective_end":
            self._windows.tell("window_closes")
        if role.is_wait and self._touches_pending(args, kwargs):
            self._close(result)
        if role.view_or_copy and self._weights is not None and storage_key(result) != storage_key(args[0]):
            self._record(role, args, kwargs)
        return result

    def _run_collective(self, role: Role, func: Any, args: tuple, kwargs: dict) -> Any:
        if self._explicit:
            return func(*args, **kwargs)
        self._close_pending()
        self._num_collectives += 1
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

    def _mark(self, marker: str, args: tuple) -> None:
        if marker == "window_begin":
            self._static = (self._num_collectives, list(args[1]))
        elif marker == "window_end":
            # Compiled code: its fused kernels read weights that no operator here shows, but the compile pass saw them.
            num_collectives, weights = self._static
            self._static = (self._num_collectives, [])
            if self._weights is not None and self._num_collectives > num_collectives:
                self._close_pending()
                self._record(Role(), (weights,), {})
        else:
            self._close_pending()
            self._explicit = marker == "collective_begin"

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

    def _record(self, role: Role, args: tuple, kwargs: dict) -> list[torch.Tensor]:
        """Records the weights that an operator is about to read. Returns those of which a router chose what is read."""
        read: list[torch.Tensor] = []
        routed: list[torch.Tensor] = []
        find = self._weights.find
        for key, value in chain(enumerate(args), kwargs.items()) if kwargs else enumerate(args):
            for tensor in (value,) if isinstance(value, torch.Tensor) else _tensors(value):
                weight = find(tensor)
                if weight is None or key in role.written:
                    continue
                by_row = role.row_lookup and key == 0
                if role.grouped or is_routed(weight.name, tensor, weight.shape, by_row):
                    self._sightings.routed.add(weight.name)
                    routed.append(tensor)
                elif by_row:
                    self._sightings.by_row.add(weight.name)
                else:
                    self._sightings.read.add(weight.name)
                    read.append(tensor)
        if read:
            self._windows.record(read)
        return routed


# What runs inside `__torch_dispatch__`.
_MODULES = ("collectives", "experts", "learn", "nvtx", "roles", "trace.recorder", "weights", "windows")


@cache
def _hide_from_dynamo() -> None:
    """Eager code between two compiled graphs runs with Dynamo watching: it must not try to compile us there."""
    from torch._dynamo import trace_rules

    for module in _MODULES:
        trace_rules.add(f"{__package__}.{module}")


def learn_mode(windows: Windows, weights: WeightMap | None, sightings: Sightings) -> LearnMode:
    """A `LearnMode` that Dynamo leaves alone, if this process has it."""
    if "torch._dynamo" in sys.modules:
        _hide_from_dynamo()
    return LearnMode(windows, weights, sightings)


def _bytes_of_routed(role: Role, tensor: torch.Tensor, args: tuple, result: Any) -> int:
    """About how many bytes an operator read of routed experts, given what it was called with and returned."""
    num_bytes = tensor.numel() * tensor.element_size()
    if role.grouped:
        num_rows, num_experts = args[0].shape[0], tensor.shape[0]  # each row has chosen one expert
        return num_bytes * min(num_rows, num_experts) // num_experts
    if role.row_lookup:
        return min(num_bytes, result.numel() * result.element_size())
    return num_bytes
