"""SGLang's whole decode graphs, one for each shape: `FullCudaGraphBackend` keeps the graph and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .graph_pairs import GraphPairs
from .hooks import Wrapper


def _put(backend: Any, shape_key: Any) -> Callable[[tuple], None]:
    def put(kept: tuple) -> None:
        backend._graphs[shape_key], backend._outputs[shape_key] = kept

    return put


def capturing(pairs: GraphPairs) -> Wrapper:
    """Around `capture_one(self, shape_key, forward_fn, ...)`, which runs two warm-ups and captures."""

    def wrapper(capture_one: Callable) -> Callable:
        def wrapped(self: Any, shape_key: Any, forward_fn: Callable, *args: Any, **kwargs: Any) -> None:
            def capture() -> tuple:
                capture_one(self, shape_key, forward_fn, *args, **kwargs)
                return self._graphs[shape_key], self._outputs[shape_key]

            pairs.capture(self, shape_key, capture, _put(self, shape_key))

        return wrapped

    return wrapper


def replaying(pairs: GraphPairs) -> Wrapper:
    """Around `replay(self, shape_key, ...)`."""

    def wrapper(replay: Callable) -> Callable:
        def wrapped(self: Any, shape_key: Any, *args: Any, **kwargs: Any) -> Any:
            return pairs.replay(
                self, shape_key, _put(self, shape_key), lambda: replay(self, shape_key, *args, **kwargs)
            )

        return wrapped

    return wrapper


def dropping(pairs: GraphPairs) -> Wrapper:
    """Around `cleanup(self)`, which lets every graph go."""

    def wrapper(cleanup: Callable) -> Callable:
        def wrapped(self: Any) -> None:
            pairs.drop(self)
            cleanup(self)

        return wrapped

    return wrapper
