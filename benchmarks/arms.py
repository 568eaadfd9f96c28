"""What runs around the collectives of a step: nothing, a rival, ours, or reads that make the weights hot."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch

import dsv41_l2pf
from dsv41_l2pf import Config, Prefetcher
from dsv41_l2pf.tuning import Tuning

from . import native
from .models import MIB

MODE = "decode"
# Bulk instructions take multiples of 16 bytes.
_ALIGNMENT = 16

Segments = list[tuple[int, int]]  # address, num_bytes


def cut(weights: list[torch.Tensor], budget_bytes: int) -> Segments:
    """The first `budget_bytes` of `weights`, in order."""
    segments, left = [], budget_bytes
    for weight in weights:
        num_bytes = min(weight.numel() * weight.element_size(), left) // _ALIGNMENT * _ALIGNMENT
        if num_bytes:
            segments.append((weight.data_ptr(), num_bytes))
            left -= num_bytes
    return segments


def window_bytes(weights: list[torch.Tensor]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)


class Hooks:
    """Off: what every other arm is compared with."""

    main_priority = 0  # of the stream that the step is captured on

    @contextmanager
    def forward(self) -> Iterator[None]:
        yield

    @contextmanager
    def collective(self, data: torch.Tensor, kind: str) -> Iterator[None]:
        yield

    def record_weight(self, weight: torch.Tensor) -> None:
        """Called right before a GEMM reads `weight`."""

    def record_unplanned(self, num_bytes: int) -> None:
        """Called right before bytes are read that no window can plan."""


class Ours(Hooks):
    """The public operators, with an explicit bracket around each collective and each GEMM."""

    def __init__(self, num_tokens: int, config: Config | None = None) -> None:
        self.prefetcher = Prefetcher(config or Config())
        self.num_tokens = num_tokens

    @contextmanager
    def forward(self) -> Iterator[None]:
        with self.prefetcher.forward(self.num_tokens, MODE):
            yield

    @contextmanager
    def collective(self, data: torch.Tensor, kind: str) -> Iterator[None]:
        torch.ops.dsv41.collective_begin(data, kind)
        yield
        torch.ops.dsv41.collective_end(data)

    def record_weight(self, weight: torch.Tensor) -> None:
        torch.ops.dsv41.record_weight([weight])

    def record_unplanned(self, num_bytes: int) -> None:
        torch.ops.dsv41.record_unplanned(num_bytes)

    def signature(self) -> dict:
        """What `status` says of the one signature of this arm. Raises RuntimeError when it has no window."""
        (signature,) = self.prefetcher.status()["signatures"]
        if not signature["windows"]:
            raise RuntimeError(f"ours learned no window: {signature['reason']}")
        return signature

    def set_all(self, budget_bytes: int, form: str = "") -> None:
        """Sets every window of the live graph; see `Prefetcher.set_window`."""
        for window in self.signature()["windows"]:
            self.prefetcher.set_window(
                window["collective_index"], num_tokens=self.num_tokens, mode=MODE, budget_bytes=budget_bytes, form=form
            )

    def notes(self) -> dict:
        """What is planned now, for the JSON."""
        return notes_of(self.signature())


def notes_of(signature: dict) -> dict:
    """What a signature of `status` plans, for the JSON."""
    windows = signature["windows"]
    on = [window for window in windows if window["budget_bytes"] > 0]
    return {
        "num_windows": len(windows),
        "num_windows_on": len(on),
        "planned_mib": signature["planned_bytes"] / MIB,
        "window_us": statistics.median(window["window_us"] for window in windows),
        "forms": sorted({window["form"] for window in on}),
        "reason": signature["reason"],
    }


@dataclass(frozen=True)
class Geometry:
    """How a rival prefetches, with the budget it published for a window and one as large as ours may be.

    joins_each: the next collective waits for the prefetch, else only the end of the step does.
    in_flight_bytes: the cap of the paced loads.
    """

    arm: str
    budget_bytes: int
    joins_each: bool = True
    low_priority: bool = False
    in_flight_bytes: int = 0

    @property
    def name(self) -> str:
        cap = f" {self.in_flight_bytes >> 10} KiB in flight" if self.in_flight_bytes else ""
        return f"{self.arm} {self.budget_bytes / MIB:g} MiB{cap}"


_LARGE = 32 * MIB
# Each rival at its published budget and at a large one; it is judged by the better.
GEOMETRIES = (
    Geometry("seed", 6 * MIB),
    Geometry("seed", _LARGE),
    Geometry("bulk_4k", 20 * MIB, joins_each=False),
    Geometry("bulk_4k", _LARGE, joins_each=False),
    Geometry("paced_load", 12 * MIB, low_priority=True, in_flight_bytes=128 << 10),
    Geometry("paced_load", _LARGE, low_priority=True, in_flight_bytes=512 << 10),
)
RIVALS = tuple(dict.fromkeys(geometry.arm for geometry in GEOMETRIES))


class Rival(Hooks):
    """A prefetch on a side stream, forked before the collective and joined as published."""

    def __init__(self, geometry: Geometry, windows: list[list[torch.Tensor]], device: str = "cuda") -> None:
        self.geometry = geometry
        self.main_priority = -1 if geometry.low_priority else 0
        self._side = torch.cuda.Stream(priority=0)
        cuts = [cut(weights, geometry.budget_bytes) for weights in windows]
        self._tables = [torch.tensor(segments, dtype=torch.int64, device=device) for segments in cuts]
        self._index = 0
        self._pending = False

    @contextmanager
    def forward(self) -> Iterator[None]:
        self._index = 0
        yield
        self._join()

    @contextmanager
    def collective(self, data: torch.Tensor, kind: str) -> Iterator[None]:
        if self.geometry.joins_each:
            self._join()
        table = self._tables[self._index]
        self._index += 1
        if len(table):
            self._side.wait_stream(torch.cuda.current_stream())
            self._launch(table)
            self._pending = True
        yield

    def _join(self) -> None:
        if self._pending:
            torch.cuda.current_stream().wait_stream(self._side)
        self._pending = False

    def _launch(self, table: torch.Tensor) -> None:
        args = (table.data_ptr(), len(table))
        if self.geometry.in_flight_bytes:
            args += (self.geometry.in_flight_bytes,)
        native.call(self.geometry.arm, *args, stream=self._side)


class ReadFirst(Hooks):
    """Reads bytes between the collective and the GEMMs that follow it: the window's weights, or as many others.

    The two cost the same but for what the GEMMs then find in L2: their difference is the ideal saving.
    """

    def __init__(
        self, windows: list[list[torch.Tensor]], budget_bytes: int, instead: torch.Tensor | None = None
    ) -> None:
        """instead: bytes to read in place of the weights, more than L2 holds."""
        self._cuts = [cut(weights, budget_bytes) for weights in windows]
        self._instead = instead
        self._index = 0
        self._offset = 0

    @contextmanager
    def forward(self) -> Iterator[None]:
        self._index = self._offset = 0
        yield

    @contextmanager
    def collective(self, data: torch.Tensor, kind: str) -> Iterator[None]:
        yield
        for address, num_bytes in self._cuts[self._index]:
            native.read(address if self._instead is None else self._next(num_bytes), num_bytes)
        # As many other bytes push out what the next collective reads, which the window's own weights would not have.
        native.read(data.data_ptr(), data.numel() * data.element_size())
        self._index += 1

    def _next(self, num_bytes: int) -> int:
        if self._offset + num_bytes > self._instead.numel():
            self._offset = 0
        address = self._instead.data_ptr() + self._offset
        self._offset += num_bytes
        return address


def calibration() -> dict:
    """What `dsv41_l2pf.calibrate` measures on the current device now, for the JSON."""
    return asdict(dsv41_l2pf.calibrate(force=True))


def tuning_notes(tuning: Tuning) -> dict:
    """What `Prefetcher.tune` decided, for the JSON: all but the single windows."""
    found = asdict(tuning)
    del found["windows"]
    return {**found, "num_off": tuning.num_off}
