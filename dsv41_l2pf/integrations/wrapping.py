"""Small wrappers that the engines' integrations share. A wrapper takes the original function and returns the new one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from .hooks import Wrapper
from .pauses import Pauses


def argument(position: int, name: str) -> Callable[[tuple, dict], Any]:
    """Picks one argument of a call, given by position or by name. Raises KeyError when it is missing."""

    def pick(args: tuple, kwargs: dict) -> Any:
        return args[position] if position < len(args) else kwargs[name]

    return pick


def around(context: Callable[[], AbstractContextManager]) -> Wrapper:
    """Runs the function inside `context()`."""

    def wrapper(function: Callable) -> Callable:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with context():
                return function(*args, **kwargs)

        return wrapped

    return wrapper


def before(action: Callable[[], None]) -> Wrapper:
    """Calls `action()` first."""

    def wrapper(function: Callable) -> Callable:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            action()
            return function(*args, **kwargs)

        return wrapped

    return wrapper


def after(action: Callable[[], None]) -> Wrapper:
    """Calls `action()` last, also when the function raises."""

    def wrapper(function: Callable) -> Callable:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            finally:
                action()

        return wrapped

    return wrapper


def on_error(action: Callable[[], None]) -> Wrapper:
    """Calls `action()` only when the function raises."""

    def wrapper(function: Callable) -> Callable:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except BaseException:
                action()
                raise

        return wrapped

    return wrapper


def pausing(pauses: Pauses, concerns: Callable[[tuple, dict], bool] = lambda args, kwargs: True) -> Wrapper:
    """Pauses before the function, if the call concerns weights; it stays so unless the function raises."""

    def wrapper(function: Callable) -> Callable:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not concerns(args, kwargs):
                return function(*args, **kwargs)
            pauses.pause()
            return on_error(pauses.resume)(function)(*args, **kwargs)

        return wrapped

    return wrapper


def resuming(pauses: Pauses, concerns: Callable[[tuple, dict], bool] = lambda args, kwargs: True) -> Wrapper:
    """Resumes after the function, if the call concerns weights and has not raised."""

    def wrapper(function: Callable) -> Callable:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if concerns(args, kwargs):
                pauses.resume()
            return result

        return wrapped

    return wrapper
