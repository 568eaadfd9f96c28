"""What a window can save, on paper: for GPUs that were not at hand, and to compare with what was measured.

    saved = prefetched x (1 / cold rate - 1 / hot rate) - node
    prefetched = min(weights, usable L2, fill rate x window)

Cold and hot are the rates at which a kernel reads from DRAM and from L2, fill is the rate at which a prefetch brings
bytes, node is what a prefetch in a graph costs. What the prefetch does to the collective itself is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

MIB = 1 << 20
# What an empty node may cost at most.
NODE_US = 0.1
WINDOWS_US = (5.0, 10.0, 15.0, 26.0, 50.0)
_BYTES_A_US = 1e3  # of one GB/s


@dataclass(frozen=True)
class Rates:
    """Rates in GB/s, and the bytes of L2 that prefetched weights may fill. Raises ValueError unless all are > 0."""

    cold_gbps: float
    hot_gbps: float
    fill_gbps: float
    usable_l2_bytes: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"{name}: expected a number > 0, got {value!r}")

    def prefetched_bytes(self, weight_bytes: int, window_us: float) -> float:
        """The bytes that are in L2 when a window of `window_us` ends, of `weight_bytes` to bring."""
        return min(weight_bytes, self.usable_l2_bytes, self.fill_gbps * _BYTES_A_US * window_us)

    def saved_us(self, weight_bytes: int, window_us: float) -> float:
        """What a window of `window_us` saves the reads of `weight_bytes` that follow it; below 0 when it costs."""
        gain_us_a_byte = (1 / self.cold_gbps - 1 / self.hot_gbps) / _BYTES_A_US
        return self.prefetched_bytes(weight_bytes, window_us) * gain_us_a_byte - NODE_US

    @classmethod
    def from_calibration(cls, calibration: Mapping[str, Any]) -> Rates:
        """calibration: what `dsv41_l2pf.calibrate` measured. Launch costs are in both reads and so cancel."""
        bytes_a_us = calibration["window_bytes"] / _BYTES_A_US
        return cls(
            cold_gbps=bytes_a_us / calibration["cold_us"],
            hot_gbps=bytes_a_us / calibration["hot_us"],
            fill_gbps=calibration["chosen_fill_gbps"],
            usable_l2_bytes=calibration["hot_knee_bytes"],
        )


@dataclass(frozen=True)
class Gpu:
    """The cautious and the hopeful end of what public figures say. basis: where they come from."""

    name: str
    low: Rates
    high: Rates
    basis: str


# Usable L2 is 0.6 of L2, as before calibration; fill is 0.7 (low) or 0.9 (high) of the cold rate, which is what
# prefetch loads reached on GB10.
GPUS = (
    Gpu(
        "GB10",
        Rates(236, 980, 165, 14 * MIB),
        Rates(236, 1020, 215, 14 * MIB),
        "8 MiB: 35.6 us cold, 8.2 us hot; prefetch loads 165..215 GB/s; 24 MB L2",
    ),
    Gpu(
        "RTX PRO 6000",
        Rates(1740, 4500, 1220, 73 * MIB),
        Rates(1590, 5600, 1430, 73 * MIB),
        "50 MB: 28.8 us cold, 11 us hot; 70.4 MB: 44.4 us cold, 12.6 us hot; 128 MB L2",
    ),
    Gpu(
        "H200",
        Rates(3890, 9700, 2700, 30 * MIB),
        Rates(3890, 10200, 3500, 40 * MIB),
        "3.89 TB/s DRAM and 9.7..10.2 TB/s L2 reads; 2.7 TB/s filled by 32 CTAs; hot up to 30..40 MiB",
    ),
    Gpu(
        "B200",
        Rates(6400, 12800, 4500, 72 * MIB),
        Rates(5000, 15000, 4500, 72 * MIB),
        "a guess: 8 TB/s spec, over 5 TB/s seen; no L2 rate is public, so 2..3 times the DRAM rate; 126 MB L2",
    ),
)


def predictions(weight_bytes: int, window_us: float) -> dict[str, tuple[float, float]]:
    """The low and high saving in us of one window on each of `GPUS`, by name."""
    return {
        gpu.name: (gpu.low.saved_us(weight_bytes, window_us), gpu.high.saved_us(weight_bytes, window_us))
        for gpu in GPUS
    }


def prediction_table(
    weight_bytes: int = 16 * MIB, windows_us: Sequence[float] = WINDOWS_US, gpus: Sequence[Gpu] = GPUS
) -> Table:
    """What one window saves before `weight_bytes` of weights, by GPU and window length."""
    table = Table(title=f"predicted us that a window saves before {weight_bytes / MIB:g} MiB of weights, low .. high")
    table.add_column("GPU")
    for window_us in windows_us:
        table.add_column(f"{window_us:g} us", justify="right")
    table.add_column("from", overflow="fold")
    for gpu in gpus:
        low, high = ([rates.saved_us(weight_bytes, us) for us in windows_us] for rates in (gpu.low, gpu.high))
        table.add_row(gpu.name, *(f"{least:.1f} .. {most:.1f}" for least, most in zip(low, high)), gpu.basis)
    return table
