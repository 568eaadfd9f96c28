"""The object a user holds: it owns a prefetcher of the library, and hooks models or brackets forwards by hand."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .attachment import Attachment
from .calibration import current_gpu_reason
from .checks import is_whole, rejected, require
from .collectives import KINDS
from .config import FORMS, Config
from .nvtx import NvtxRanges, has_nvtx
from .report import Report
from .state import read_state
from .tune import DEFAULT_ROUNDS, tune
from .tuning import Tuning, load, save
from .tunings import Tunings
from .sightings import Sightings
from .windows import Windows

_model_ids = itertools.count(1)  # id() of a dead model can be reused by a living one, these cannot


class Prefetcher:
    """Learns which weights follow which collective, and prefetches them in the window of that collective.

    config: the settings; None reads the environment (`Config.from_env`).

    `attach` hooks a model's forward; for models that it cannot watch, bracket by hand:

        with prefetcher.forward(num_tokens):
            with prefetcher.collective(x, "all_reduce"):
                dist.all_reduce(x)
            torch.ops.dsv41.record_weight([w])
            y = x @ w
    """

    def __init__(self, config: Config | None = None) -> None:
        self.config = Config.from_env() if config is None else config
        require(isinstance(self.config, Config), "config", "a Config or None", config)
        self.reason = ""
        self.sightings = Sightings()
        self.windows = Windows()
        self.handle = 0
        self.is_paused = False
        self._is_tuning = False
        self._attachment_ref: weakref.ref[Attachment] | None = None
        self._model_ids: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        self._default_model_id = next(_model_ids)
        self.tunings = Tunings()
        self._calibration_reason: str | None = None  # None: not tried yet; "": calibrated, or there is no GPU
        if not self.config.enabled:
            self.reason = "off: DSV41_L2_PREFETCH=0" if config is None else "off: Config(enabled=False)"
            return
        self.handle = torch.ops.dsv41.create_prefetcher(
            self.config.budget_bytes,
            self.config.all_gather,
            self.config.form,
            self.config.placement,
            self.config.max_tokens,
            self.config.back_to_back,
            self.config.strict,
            self.config.in_flight_bytes,
        )
        if self.config.nvtx and has_nvtx():
            self.windows.observer = NvtxRanges(self)
        # Not at exit: the process frees everything then, and the operators may be gone before this runs.
        weakref.finalize(self, torch.ops.dsv41.destroy_prefetcher, self.handle).atexit = False

    @property
    def _attachment(self) -> Attachment | None:
        # The hook on the model owns it, so that a prefetcher does not keep the weights of a dropped model alive.
        return None if self._attachment_ref is None else self._attachment_ref()

    def model_id(self, model: torch.nn.Module | None = None) -> int:
        """The number that signatures know `model` by; without a model, that of the prefetcher's unnamed model."""
        if model is None:
            attachment = self._attachment
            return self._default_model_id if attachment is None else attachment.model_id
        try:
            if model not in self._model_ids:
                self._model_ids[model] = next(_model_ids)
            return self._model_ids[model]
        except TypeError:  # no weak reference to it: an engine may pass what stands for a model, but no text
            raise rejected("model", "a torch.nn.Module or None", model) from None

    @contextmanager
    def forward(
        self, num_tokens: int, mode: str = "decode", model: torch.nn.Module | None = None
    ) -> Iterator[bool]:
        """Brackets one forward of `num_tokens` tokens. Yields whether it counts: nested, larger or other modes do not.

        Raises RuntimeError in strict mode when a frozen signature has no window, after the forward is over; never in
        place of an exception of the model.
        """
        if self.is_paused or not self.handle or self.windows.error:
            yield False
            return
        if self._calibration_reason is None:
            self._calibration_reason = current_gpu_reason()
        model_id = self.model_id(model)
        counts = torch.ops.dsv41.begin_forward(self.handle, model_id, num_tokens, mode)
        is_observed = counts and self.windows.observer is not None
        if is_observed:
            self.windows.tell("forward_begins", model_id, num_tokens, mode)
        try:
            yield counts
        except BaseException:
            torch.ops.dsv41.abort_forward()
            raise
        finally:
            if is_observed:
                self.windows.tell("forward_ends")
        torch.ops.dsv41.end_forward()
        if counts and self.tunings.expected:
            self.tunings.apply(self)

    @contextmanager
    def collective(self, input: torch.Tensor, kind: str) -> Iterator[None]:
        """Brackets one collective of `kind` on `input`; a no-op outside a forward."""
        if not self.handle:
            yield
            return
        opened = self.windows.open(input, kind)
        try:
            yield
        finally:
            if opened:
                self.windows.close(input)

    def wrap_collective(
        self,
        fn: Callable,
        kind: str,
        *,
        input_of: Callable[..., torch.Tensor] | None = None,
        accepts: Callable[..., bool] | None = None,
    ) -> Callable:
        """`fn` with every call bracketed as a collective of `kind`.

        input_of(*args, **kwargs): the tensor that is sent; the first tensor argument when None.
        accepts(*args, **kwargs): whether the transport takes the call; one that it declines, or for which `accepts`
        raises, is not numbered. A `stream` keyword holding a torch.cuda.Stream is the stream that the window is on.

        Raises ValueError when `fn` is not callable and when `kind` is none of those that the operators know.
        """
        require(callable(fn), "fn", "a callable", fn)
        require(kind in KINDS, "kind", "one of " + ", ".join(KINDS), kind)
        return self.windows.wrapped(fn, kind, input_of, accepts) if self.handle else fn

    def attach(self, model: torch.nn.Module, mode: str = "decode") -> None:
        """Hooks `model`'s forward; see `dsv41_l2pf.attach`."""
        if self._attachment is not None:
            raise ValueError(
                "attach: expected a prefetcher without a model, got one that is attached: detach() it first"
            )
        if self.handle:
            self._attachment_ref = weakref.ref(Attachment(self, model, mode))

    def detach(self) -> None:
        """Takes the hook off the model again and forgets what was learned; a second call does nothing."""
        attachment = self._attachment
        if attachment is not None:
            attachment.remove()
            self._attachment_ref = None
            self.invalidate()

    def invalidate(self) -> None:
        """Brings every signature back to unlearned and lets go of the weights: call it when weights were replaced.

        Graphs captured before run without prefetch from then on; eager forwards learn again, and so does what is
        captured after them. The switch is ordered on the current stream: before memory is unmapped, synchronise with
        what still replays on others. Called while the current stream is being captured, graphs keep what they have.
        """
        attachment = self._attachment
        if attachment is not None:
            attachment.watching.clear()
        if self.handle:
            torch.ops.dsv41.invalidate(self.handle)
        self.tunings.expect_all()

    def pause(self) -> None:
        """Until `resume`: no window is launched, nothing is learned, and replays of captured graphs prefetch nothing.

        Call it before weights are rewritten, offloaded or unmapped; it returns when no prefetch is running any more.
        Pauses nest. Graphs captured while paused have no prefetch. A bare `l2_prefetch` is its caller's own, and is
        not held back. Raises RuntimeError while the current stream is being captured, and when a device call fails;
        the pause counts in the second case only.
        """
        if not self.handle:
            return
        self.is_paused = True
        try:
            torch.ops.dsv41.pause(self.handle)
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        finally:
            self.is_paused = self._read_is_paused()

    def resume(self) -> None:
        """Ends a pause. The last one gives every learned window its budget back, in captured graphs too.

        The weights must be mapped again where they were, whatever is in them; if they moved, call `invalidate` first.
        Raises RuntimeError without a pause, and while the current stream is being captured.
        """
        if self.handle:
            torch.ops.dsv41.resume(self.handle)
            self.is_paused = self._read_is_paused()

    @property
    def is_measuring(self) -> bool:
        """Whether somebody times the windows, so that every forward must have them."""
        return self._is_tuning or self.windows.observer is not None

    def _read_is_paused(self) -> bool:
        entries = read_state()["prefetchers"]
        return any(entry["paused"] for entry in entries if entry["prefetcher"] == self.handle)

    def set_window(
        self,
        collective_index: int,
        *,
        num_tokens: int,
        mode: str = "decode",
        budget_bytes: int = -1,
        form: str = "",
        model: torch.nn.Module | None = None,
    ) -> None:
        """Changes one learned window, in live graphs too. budget_bytes 0: off, -1: as configured. form "": kept.

        Raises ValueError for values out of range, and when the signature or the window was not learned.
        """
        require(is_whole(collective_index, 0), "collective_index", "a whole number >= 0", collective_index)
        require(is_whole(num_tokens, 0), "num_tokens", "a whole number >= 0", num_tokens)
        require(is_whole(budget_bytes, -1), "budget_bytes", "bytes >= 0, or -1 for as configured", budget_bytes)
        require(form in ("", *FORMS), "form", "'' or one of " + ", ".join(FORMS), form)
        require(isinstance(mode, str), "mode", "a text", mode)
        if self.handle:
            model_id = self.model_id(model)
            torch.ops.dsv41.set_window(
                self.handle, model_id, num_tokens, mode, collective_index, budget_bytes, form
            )

    def tune(
        self,
        step: Callable[[], object],
        *,
        num_tokens: int | None = None,
        mode: str | None = None,
        rounds: int = DEFAULT_ROUNDS,
        baseline: Callable[[], object] | None = None,
        process_group: Any = None,
        progress: bool = True,
    ) -> Tuning:
        """Measures `step` with other settings of its windows, in turns, and keeps the fastest; off if none is faster.

        step: runs one decode step, most often a replay of a captured graph. num_tokens, mode: which signature it is;
        None when only one has windows. rounds: how often each candidate has its turn. baseline: the same step from a
        graph captured without us; the last word is then against it, so that even an empty node counts against us.
        process_group: ranks that run the step together and call this together; the slowest one's times decide. A rank
        without windows of its own, switched or latched off, goes along, and its tuning's reason says so.
        progress: show a bar.

        It takes at most about a minute. Windows that it switched off get no node in graphs captured from then on.
        Raises ValueError on every rank when no single signature fits, or ranks call it with other arguments, and
        RuntimeError inside a capture.
        """
        self._is_tuning = True
        try:
            found = tune(
                self,
                step,
                num_tokens=num_tokens,
                mode=mode,
                rounds=rounds,
                baseline=baseline,
                process_group=process_group,
                progress=progress,
            )
        finally:
            self._is_tuning = False
        self.tunings.note(found)
        return found

    def save_tunings(self, path: str | os.PathLike) -> None:
        """Writes what `tune` decided to a JSON file, so that a later start need not tune. Raises OSError."""
        save(path, self.tunings.all(), read_state()["version"])

    def load_tunings(self, path: str | os.PathLike) -> None:
        """Takes what `save_tunings` wrote: applied to each signature once it is learned, when the plan is the same.

        Call it before capture. Raises FileNotFoundError, and ValueError when it is not such a file.
        """
        for tuning in load(path):
            self.tunings.expect(tuning)

    def plan_segments(
        self, num_tokens: int, mode: str = "decode", model: torch.nn.Module | int | None = None
    ) -> list[tuple[int, int, int]]:
        """The plan of one signature: (collective_index, address, num_bytes) in reading order, not cut by the budget.

        model: the module, or the number that `status` shows for it.
        """
        require(is_whole(num_tokens, 0), "num_tokens", "a whole number >= 0", num_tokens)
        require(isinstance(mode, str), "mode", "a text", mode)
        if not self.handle:
            return []
        model_id = model if isinstance(model, int) else self.model_id(model)
        flat = torch.ops.dsv41.plan_segments(self.handle, model_id, num_tokens, mode)
        return list(zip(flat[0::3], flat[1::3], flat[2::3]))

    def weight_name(self, address: int) -> str:
        """The qualified name of the attached model's weight at `address`, else the address in hexadecimal."""
        require(is_whole(address, 0), "address", "a whole number >= 0", address)
        attachment = self._attachment
        return hex(address) if attachment is None else attachment.weights.name_at(address)

    def status(self) -> dict:
        """What the library knows of this prefetcher (while `paused`, every budget shows as 0), and: attached,
        calibration (why the GPU is not calibrated, or ''), reason (why it is off, or ''), and what is not planned:
        skipped_weights (only rows are read), routed_weights (a router chooses), hidden_weights (compiled code hides
        who reads it; bytes by name); unwatched: eager forwards that are watched no more, because that did not pay:
        their number of tokens, and the time they took watched, as a multiple of the time unwatched.
        """
        everything = read_state()
        attachment = self._attachment
        mine = [entry for entry in everything["prefetchers"] if entry["prefetcher"] == self.handle]
        found = mine[0] if mine else {"prefetcher": self.handle, "paused": False, "signatures": []}
        return {
            **found,
            "version": everything["version"],
            "enabled": self.config.enabled,
            "attached": attachment is not None,
            "calibration": self._calibration_reason or "",
            "signatures": [self.tunings.described(entry) for entry in found["signatures"]],
            "reason": self.reason or self.windows.error or (attachment.reason if attachment else ""),
            "skipped_weights": sorted(self.sightings.only_rows),
            "routed_weights": sorted(self.sightings.routed),
            "hidden_weights": {w.name: w.num_bytes for w in (attachment.hidden_weights() if attachment else ())},
            "unwatched": attachment.unwatched() if attachment else {},
        }

    def report(self) -> Report:
        """The signatures and the windows of the largest plan, for `print` and for rich."""
        return Report(self)


def attach(model: torch.nn.Module, config: Config | None = None, *, mode: str = "decode") -> Prefetcher:
    """Hooks the forward of `model`, this instance only, so that its forwards are learned and prefetched.

    config: the settings; None reads the environment. With DSV41_L2_PREFETCH=0 nothing is installed and the
    prefetcher's status says so. mode: decode, target_verify or draft_extend, optionally with a /variant.

    Raises ValueError when `model` is no module or attached already, and when `mode` is not decode-like.
    """
    Attachment.check(model, mode)
    prefetcher = Prefetcher(config)
    prefetcher.attach(model, mode)
    return prefetcher
