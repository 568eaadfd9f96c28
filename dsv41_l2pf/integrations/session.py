"""What the hooks of one engine share in a process: the prefetcher, the bracket of a forward, windows, recording, pauses.

Nothing here raises into an engine, except in strict mode at the end of a captured forward: a collective must be reached
by every rank or by none.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..config import MIB, Config
from ..prefetcher import Prefetcher
from ..weights import DEVICES
from ..windows import first_tensor
from .pauses import Pauses, cuda_in_use
from .tunings_file import TuningsFile

BRACKETED = "_dsv41_l2pf_bracketed"  # marks a forward that is bracketed already
Reads = Callable[[tuple, dict], list[torch.Tensor]]
SignatureKey = tuple[int, int, str]  # model, number of tokens, mode


def is_capturing() -> bool:
    """Whether the current stream is being captured into a graph."""
    return cuda_in_use() and torch.cuda.is_current_stream_capturing()


class _Thread(threading.local):
    counts = False  # inside a forward that the library counts
    records = False  # and one that may still learn
    main_stream: Any = None
    depth = 0  # of hooked collectives inside one another
    opened = False  # the outermost one opened a window that is not closed yet
    suspended = 0
    variant = ""
    captured: list[SignatureKey] | None = None  # of captured forwards, while somebody asks

    def __init__(self) -> None:
        self.side: list[list[torch.Tensor]] = []  # read on other streams since the last collective


class Session(Pauses):
    """One per process and engine.

    config: the settings. logger: where an operator of this engine looks. The prefetcher is made at the first forward,
    so that processes without a model stay as they are. own_brackets: forwards are bracketed by `Session.forward`; else
    by the prefetcher's owner, and the library alone knows whether there is one.
    """

    def __init__(
        self,
        config: Config,
        logger: logging.Logger,
        prefetcher: Prefetcher | None = None,
        *,
        own_brackets: bool = True,
    ) -> None:
        super().__init__()
        self.config = config
        self.logger = logger
        self._prefetcher = prefetcher
        self._own_brackets = own_brackets
        self._local = _Thread()
        self.tunings_file = TuningsFile(config.tunings, logger, is_written=config.tune)

    @property
    def prefetcher(self) -> Prefetcher:
        """The prefetcher of this process, made on first use."""
        if self._prefetcher is None:
            self._prefetcher = Prefetcher(self.config)
            self.tunings_file.load(self._prefetcher)
        return self._prefetcher

    # -- forwards ---------------------------------------------------------------------------------------------------

    @contextmanager
    def forward(self, owner: Any, num_tokens: int, mode: str, *, captures: bool = False) -> Iterator[None]:
        """Brackets one forward. One inside another, one of a dummy run and one of a paused engine are left alone.

        owner: whose forward it is, a model or what stands for one; None for the only one. captures: graphs are captured
        inside, if not around.
        """
        local = self._local
        if self.off or local.counts or local.suspended or self._paused:
            yield
            return
        mode += local.variant
        if isinstance(owner, torch.nn.Module):
            self.know(owner)
        try:
            prefetcher = self.prefetcher
        except Exception as error:  # noqa: BLE001  the server goes on without
            self.switch_off(str(error))
            yield
            return
        captured = captures or is_capturing()
        with prefetcher.forward(num_tokens, mode, owner) as counts:
            if counts:
                local.counts, local.records = True, not captured
                local.main_stream = torch.cuda.current_stream() if cuda_in_use() else None
            try:
                yield
                if counts:
                    self._flush_side()
            finally:
                if counts:
                    local.counts = local.records = local.opened = False
                    local.main_stream, local.depth = None, 0
                    local.side.clear()
        if counts:
            key = (prefetcher.model_id(owner), num_tokens, mode)
            if captured and local.captured is not None:
                local.captured.append(key)
            self._announce(key, captured)

    def know(self, model: torch.nn.Module | None) -> None:
        """Makes its tensors known, so that after an update it is clear whether planned weights are where they were."""
        if model is not None:
            self._models.add(model)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Forwards inside are not bracketed: dummy runs take other paths than the forwards they prepare."""
        self._local.suspended += 1
        try:
            yield
        finally:
            self._local.suspended -= 1

    @contextmanager
    def variant(self, name: str) -> Iterator[None]:
        """Forwards inside are learned apart from others with as many tokens; '' is the usual one."""
        before = self._local.variant
        self._local.variant = f"/{name}" if name else ""
        try:
            yield
        finally:
            self._local.variant = before

    @contextmanager
    def noting_captures(self) -> Iterator[list[SignatureKey]]:
        """Yields a list that gets the key of every forward that is captured inside."""
        self._local.captured = captured = []
        try:
            yield captured
        finally:
            self._local.captured = None

    def signature(self, key: SignatureKey) -> dict | None:
        """As `status` shows it; None when the library does not know it."""
        signatures = self.prefetcher.status()["signatures"]
        return next((s for s in signatures if (s["model"], s["num_tokens"], s["mode"]) == key), None)

    @property
    def records(self) -> bool:
        """Whether this thread is inside a forward that learns."""
        return self._local.records

    @property
    def in_forward(self) -> bool:
        """Whether this thread is inside a forward that counts."""
        return self._local.counts

    # -- collectives ------------------------------------------------------------------------------------------------

    def collective(
        self,
        function: Callable,
        kind: str,
        input_of: Callable[[tuple, dict], Any],
        accepts: Callable[[tuple, dict], bool] | None = None,
    ) -> Callable:
        """`function` as a collective. accepts: whether this call is one; raising means no.

        Hooked collectives inside one another count as one: the outermost opens the window and the first that ends closes
        it, since what follows it inside the outer one (copies, reshapes) no longer waits for peers.
        """
        local = self._local

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            # Compiled code calls the bodies behind opaque operators, and those are hooked too.
            if torch.compiler.is_compiling() or (self._own_brackets and not local.counts):
                return function(*args, **kwargs)
            if local.depth == 0 and not self._open(kind, input_of, accepts, args, kwargs):
                return function(*args, **kwargs)
            local.depth += 1
            try:
                result = function(*args, **kwargs)
            except BaseException:
                local.opened = False
                raise
            finally:
                local.depth = max(local.depth - 1, 0)
            if local.opened:
                local.opened = False
                output = first_tensor(result)
                self._on_stream(kwargs, self.prefetcher.windows.close, input_of(args, kwargs) if output is None else output)
            return result

        return wrapped

    def _open(self, kind: str, input_of: Callable, accepts: Callable | None, args: tuple, kwargs: dict) -> bool:
        try:
            if accepts is not None and not accepts(args, kwargs):
                return False
            sent = input_of(args, kwargs)
        except Exception:  # noqa: BLE001  the collective itself complains about its arguments
            return False
        self._flush_side()
        self._local.opened = self._on_stream(kwargs, self.prefetcher.windows.open, sent, kind)
        return self._local.opened

    @staticmethod
    def _on_stream(kwargs: dict, call: Callable, *args: Any) -> Any:
        stream = kwargs.get("stream")
        if not isinstance(stream, torch.cuda.Stream):
            return call(*args)
        with torch.cuda.stream(stream):
            return call(*args)

    def join(self) -> None:
        """The current stream waits for what is outstanding on its device: before a capture ends inside a forward."""
        weights = (weight for model in self._models for weight in model.parameters())
        anchor = next((weight for weight in weights if weight.device.type in DEVICES), None)
        if anchor is not None:
            torch.ops.dsv41.l2_join(anchor)  # a device error latches prefetching off there, and is not raised

    def has_graphs(self) -> bool:
        """Whether a captured forward got a window."""
        if self._prefetcher is None:
            return False
        return any(s["num_captures"] and s["num_windows"] for s in self._prefetcher.status()["signatures"])

    # -- weights ----------------------------------------------------------------------------------------------------

    def reading(self, function: Callable, reads: Reads) -> Callable:
        """`function`, with the weights that `reads(args, kwargs)` names recorded before each call."""
        local = self._local

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            # Compiled code records nothing here: see the engine's own way to learn from it.
            if not torch.compiler.is_compiling() and local.records:
                self.record(reads, args, kwargs)
            return function(*args, **kwargs)

        return wrapped

    def streaming(self, function: Callable, bytes_of: Callable[[tuple, dict], int]) -> Callable:
        """`function`, with a note before each call that it reads `bytes_of(args, kwargs)` bytes past every plan."""
        local = self._local

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() and local.records:
                try:
                    self.prefetcher.windows.record_unplanned(bytes_of(args, kwargs))
                except Exception as error:  # noqa: BLE001  e.g. a layer without the attributes of its kind
                    self.logger.debug("dsv41_l2pf: streamed bytes not recorded: %s", error)
            return function(*args, **kwargs)

        return wrapped

    def record(self, reads: Reads, args: tuple, kwargs: dict) -> None:
        """Records what `reads` names. What a side stream reads comes after what the main stream reads."""
        try:
            weights = reads(args, kwargs)
        except Exception as error:  # noqa: BLE001  e.g. a layer without the attributes of its kind
            self.logger.debug("dsv41_l2pf: weights not recorded: %s", error)
            return
        if not weights:
            return
        main = self._local.main_stream
        if main is not None and torch.cuda.current_stream() != main:
            self._local.side.append(weights)
        else:
            self.prefetcher.windows.record(weights)

    def _flush_side(self) -> None:
        for weights in self._local.side:
            self.prefetcher.windows.record(weights)
        self._local.side.clear()

    # -- log --------------------------------------------------------------------------------------------------------

    def _announce(self, key: SignatureKey, captured: bool) -> None:
        stage = "captured" if captured else "learned"
        if self._announced.get(key) in (stage, "captured"):
            return
        signature = self.signature(key)
        if signature is None or (not captured and not signature["num_windows"]):
            return
        self._announced[key] = stage
        _, num_tokens, mode = key
        text = (
            f"dsv41_l2pf: {stage} tokens={num_tokens} mode={mode}: {signature['num_collectives']} collectives, "
            f"{signature['num_windows']} windows, {signature['planned_bytes'] / MIB:.2f} MiB planned"
        )
        if captured:
            text += f", {signature['num_launched']} nodes"
        if captured and signature["reason"]:
            self.logger.warning("%s; %s", text, signature["reason"])
        else:
            self.logger.log(logging.INFO if is_first_rank() else logging.DEBUG, "%s", text)


def is_first_rank() -> bool:
    """Whether this is rank 0, or the only process."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized() and distributed.get_rank() != 0)
