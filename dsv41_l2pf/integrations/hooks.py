"""Puts wrappers around an engine's functions, now or right after their module is imported, and takes them off again."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from .targets import Target, owner_of

Wrapper = Callable[[Callable], Callable]
_INHERITED: Any = object()  # the owner had no attribute of its own


class PostImport(importlib.abc.MetaPathFinder):
    """Calls back right after a module has executed, so that whoever imports from it by name gets what is hooked.

    Other finders and the module's own loader stay in charge: only `exec_module` of that one loader object is wrapped.
    """

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[[ModuleType], None]]] = {}
        self._busy = threading.local()

    def when_imported(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        """Calls `callback(module)` at once if the module is loaded, else after its import."""
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            callback(module)
            return
        self._callbacks.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def forget(self) -> None:
        """Drops every callback that has not been called."""
        self._callbacks.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._callbacks or getattr(self._busy, "name", None) == fullname:
            return None
        self._busy.name = fullname
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.name = None
        if spec is None or spec.loader is None:
            return None
        callbacks = self._callbacks.pop(fullname)
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for callback in callbacks:
                callback(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@dataclass
class Patch:
    """One replaced attribute: enough to put it back."""

    owner: Any
    name: str
    before: Any
    after: Any

    def undo(self) -> bool:
        """Puts the original back, unless somebody has wrapped ours since."""
        if self._current() is not self.after:
            return False
        if self.before is _INHERITED:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)
        return True

    def _current(self) -> Any:
        return vars(self.owner).get(self.name)


def _rebound(value: Any, before: Any, after: Any) -> Any:
    """`value` with `before` replaced: the function itself, or a partial of it; None when it is neither."""
    if value is before:
        return after
    if isinstance(value, functools.partial) and value.func is before:
        return functools.partial(after, *value.args, **value.keywords)
    return None


def _aliases(before: Any, after: Any) -> Iterator[Patch]:
    """Module attributes that hold `before`: what `from module import name` has bound before us."""
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if value is not before and type(value) not in (FunctionType, functools.partial):
                continue
            replacement = _rebound(value, before, after)
            if replacement is not None:
                yield Patch(module, name, value, replacement)


@dataclass
class Hooks:
    """The hooks of one engine in this process."""

    logger: logging.Logger
    post_import: PostImport = field(default_factory=PostImport)
    patches: list[Patch] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, target: Target, wrapper: Wrapper) -> None:
        """Wraps `target` now, or when its module is imported."""
        self.post_import.when_imported(target.module, functools.partial(self._patch, target, wrapper))

    def when_imported(self, module: str, callback: Callable[[ModuleType], None]) -> None:
        """Calls back with the module, now or when it is imported; what the callback raises is logged."""

        def guarded(loaded: ModuleType) -> None:
            try:
                callback(loaded)
            except Exception:
                self.logger.exception("dsv41_l2pf: %s was imported, but its hook failed", module)

        self.post_import.when_imported(module, guarded)

    def remove(self) -> None:
        """Takes every hook off; functions that somebody else wrapped after us keep ours inside."""
        self.post_import.forget()
        for patch in reversed(self.patches):
            if not patch.undo():
                self.logger.warning("dsv41_l2pf: %s was wrapped after us and stays hooked", patch.name)
            elif isinstance(patch.owner, ModuleType):
                for alias in list(_aliases(patch.after, patch.before)):  # imported by name since
                    setattr(alias.owner, alias.name, alias.after)
        self.patches.clear()

    def _patch(self, target: Target, wrapper: Wrapper, module: ModuleType) -> None:
        try:
            owner, name = owner_of(module, target.name)
            before = vars(owner).get(name, _INHERITED)
            original = getattr(owner, name) if before is _INHERITED else before
            kind = type(original) if isinstance(original, (staticmethod, classmethod)) else None
            function = original.__func__ if kind else original
            wrapped = functools.wraps(function)(wrapper(function))
            after = kind(wrapped) if kind else wrapped
            setattr(owner, name, after)
            self.patches.append(Patch(owner, name, before, after))
            if owner is module:
                for alias in list(_aliases(before, after)):
                    if alias.owner is not module or alias.name != name:
                        setattr(alias.owner, alias.name, alias.after)
                        self.patches.append(alias)
        except Exception as error:  # noqa: BLE001  a server must start whatever its version looks like
            self.failed.append(target.path)
            self.logger.error("dsv41_l2pf: cannot hook %s: %s", target.path, error)
