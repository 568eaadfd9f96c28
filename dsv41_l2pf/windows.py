"""Opens and closes windows around other people's collectives without ever raising in front of one."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch

from .observer import Observer
from .weights import DEVICES

logger = logging.getLogger("dsv41_l2pf")


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first strided CPU or CUDA tensor in a tensor or a nested list of tensors, or None."""
    if isinstance(value, torch.Tensor):
        usable = value.device.type in DEVICES and value.layout is torch.strided
        return value if usable else None
    if isinstance(value, (list, tuple)):
        return next((tensor for item in value if (tensor := first_tensor(item)) is not None), None)
    return None


class Windows:
    """The windows of one holder. The first error latches it off: raising on one rank would hang its peers."""

    def __init__(self) -> None:
        self.error = ""
        self.observer: Observer | None = None

    def open(self, input: Any, kind: str) -> bool:
        """Numbers a collective; returns whether `close` is due. `input`: a tensor or a nested list of tensors."""
        anchor = first_tensor(input)
        if anchor is None:
            return False
        if self.observer is not None:
            self.tell("window_opens", kind)
        return self._call(torch.ops.dsv41.collective_begin, anchor, kind)

    def close(self, output: Any) -> None:
        """Closes the window that the last `open` opened. `output`: a tensor or a nested list of tensors."""
        anchor = first_tensor(output)
        if anchor is not None:
            self._call(torch.ops.dsv41.collective_end, anchor)
            # After: what an observer puts on the stream must not come between a collective and its prefetch node.
            if self.observer is not None:
                self.tell("window_closes")

    def wrapped(
        self,
        fn: Callable,
        kind: str,
        input_of: Callable[..., torch.Tensor] | None,
        accepts: Callable[..., bool] | None,
    ) -> Callable:
        """`fn` with a window around every call; see `Prefetcher.wrap_collective`."""

        def sent(args: tuple, kwargs: dict) -> torch.Tensor | None:
            try:
                if accepts is not None and not accepts(*args, **kwargs):
                    return None
                return first_tensor((*args, *kwargs.values()) if input_of is None else input_of(*args, **kwargs))
            except Exception:  # noqa: BLE001  fn is the one to complain about its arguments
                return None

        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            data = sent(args, kwargs)
            if data is None:
                return fn(*args, **kwargs)
            stream = kwargs.get("stream")
            # torch.cuda.stream(None) leaves the current stream as it is.
            stream = stream if isinstance(stream, torch.cuda.Stream) else None
            with torch.cuda.stream(stream):
                opened = self.open(data, kind)
            result = fn(*args, **kwargs)
            if opened:
                output = first_tensor(result)
                with torch.cuda.stream(stream):
                    self.close(data if output is None else output)
            return result

        return wrapper

    def record(self, weights: list[torch.Tensor]) -> None:
        """Notes that `weights` are about to be read, in this order."""
        self._call(torch.ops.dsv41.record_weight, weights)

    def record_unplanned(self, num_bytes: int) -> None:
        """Notes that `num_bytes` were read that no window can plan."""
        self._call(torch.ops.dsv41.record_unplanned, num_bytes)

    def tell(self, event: str, *args: Any) -> None:
        """Calls a method of the observer, if there is one. An observer that raises is dropped."""
        if self.observer is None:
            return
        try:
            getattr(self.observer, event)(*args)
        except Exception as error:  # noqa: BLE001  raising on one rank would hang its peers
            self.observer = None
            logger.error("dsv41_l2pf: names and times of windows are off: %s failed: %s", event, error)

    def _call(self, op: Any, *args: Any) -> bool:
        if self.error:
            return False
        try:
            op(*args)
        except Exception as error:  # noqa: BLE001  by torch's version a bad argument is a ValueError or a RuntimeError
            self.error = str(error).splitlines()[0]
            logger.error("dsv41_l2pf: prefetching is off: %s failed: %s", op, self.error)
            return False
        return True
