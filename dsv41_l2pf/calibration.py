"""Measures a GPU once, keeps the result in the user's cache directory, and tells the library."""

from __future__ import annotations

import json
import logging
import re
import threading
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from .checks import is_number, is_whole, require
from .config import FORMS, cache_dir
from .files import read_json, write_json
from .state import read_state

logger = logging.getLogger("dsv41_l2pf")

_FORMAT = 1
_lock = threading.Lock()
_calibrated: dict[int, str] = {}  # device index -> "" or why it could not be calibrated


@dataclass(frozen=True)
class Calibration:
    """What was measured on one GPU. Times in us, rates in GB/s (1e9 bytes), sizes in bytes.

    gpu, driver, library: what it holds for; driver as cudaDriverGetVersion counts. window_bytes: the size of the reads
    below. hot_knee_bytes: the largest read that L2 still serves. cold_us, hot_us: a read from DRAM, from L2.
    after_us: the same read after a prefetch, by form. fill_gbps: how fast a form fills L2, by form and number of CTAs.
    collective_slowdown: a collective's latency beside a prefetch / alone, by form. form, num_ctas, piece_bytes,
    start_delay_ns, chosen_fill_gbps: the choice that follows. partition_of_sm: 0 or 1 for each SM; empty where L2 is in one piece.
    """

    gpu: str
    driver: int
    library: str
    l2_bytes: int
    window_bytes: int
    hot_knee_bytes: int
    dram_read_gbps: float
    cold_us: float
    hot_us: float
    after_us: dict[str, float]
    fill_gbps: dict[str, dict[str, float]]
    collective_slowdown: dict[str, float]
    form: str
    num_ctas: int
    piece_bytes: int
    start_delay_ns: int
    chosen_fill_gbps: float
    partition_of_sm: list[int]

    @classmethod
    def from_dict(cls, found: Any) -> Calibration:
        """Raises ValueError naming the field that is missing, unknown, of another type or not a sane number."""
        if not isinstance(found, dict):
            raise ValueError(f"calibration: expected an object, got {type(found).__name__}")
        names = {field.name for field in fields(cls)}
        if set(found) != names:
            raise ValueError(f"calibration: expected the fields {sorted(names)}, got {sorted(map(str, found))}")
        for name in ("gpu", "library", "form"):
            _require(isinstance(found[name], str), name, "a text", found[name])
        _require(found["form"] in FORMS and found["form"] != "auto", "form", f"one of {FORMS[1:]}", found["form"])
        for name in ("driver", "l2_bytes", "window_bytes", "hot_knee_bytes", "num_ctas", "piece_bytes"):
            _require(is_whole(found[name], 1), name, "a whole number > 0", found[name])
        delay = found["start_delay_ns"]
        _require(is_whole(delay, 0), "start_delay_ns", "a whole number >= 0", delay)
        for name in ("dram_read_gbps", "cold_us", "hot_us", "chosen_fill_gbps"):
            _require(is_number(found[name]) and found[name] > 0, name, "a number > 0", found[name])
        for name in ("after_us", "collective_slowdown"):
            _require_numbers(found[name], name)
        _require(isinstance(found["fill_gbps"], dict), "fill_gbps", "an object", found["fill_gbps"])
        for form, rates in found["fill_gbps"].items():
            _require_numbers(rates, f"fill_gbps.{form}")
        partitions = found["partition_of_sm"]
        sane = isinstance(partitions, list) and all(type(p) is int and p in (0, 1) for p in partitions)
        _require(sane, "partition_of_sm", "a list of 0 and 1", partitions)
        return cls(**found)


def _require(holds: bool, name: str, expected: str, got: object) -> None:
    require(holds, f"calibration: {name}", expected, got)


def _require_numbers(value: object, name: str) -> None:
    sane = isinstance(value, dict) and all(is_number(number) and number > 0 for number in value.values())
    _require(sane, name, "an object of numbers > 0", value)


def calibrate(device: torch.device | int | str | None = None, *, force: bool = False) -> Calibration:
    """Measures `device` (None: the current GPU), or reads what an earlier process measured, and tells the library.

    Plans made from then on use its form, geometry and automatic budget. It takes about a second, runs on streams of its
    own, allocates four times the size of L2 and frees it again. force: measure again, whatever the cache holds.

    Raises RuntimeError without a GPU, without the library's CUDA half, while the current stream is being captured, and
    when a device call fails.
    """
    index = _device_index(device)
    with _lock:
        calibration = _obtain(index, force)
        _calibrated[index] = ""
    return calibration


def ensure_calibrated(index: int) -> str:
    """Calibrates the GPU at `index` once a process. Returns "" or why it could not be done; never raises."""
    reason = _calibrated.get(index)
    if reason is None:
        with _lock:
            if index not in _calibrated:
                _calibrated[index] = _try_obtain(index)
            reason = _calibrated[index]
    return reason


def current_gpu_reason() -> str | None:
    """Calibrates the current GPU once a process. Returns "" or why it could not be done, "" too where there is none;
    None while its stream is being captured: ask again then.
    """
    # Asking anything else would initialise CUDA in a process that does not use it.
    if not torch.cuda.is_initialized() or not read_state()["cuda_built"]:
        return ""
    return None if torch.cuda.is_current_stream_capturing() else ensure_calibrated(torch.cuda.current_device())


def _try_obtain(index: int) -> str:
    try:
        _obtain(index, force=False)
    except Exception as error:  # noqa: BLE001  the library's defaults serve without it
        reason = f"not calibrated: {str(error).splitlines()[0]}"
        logger.warning("dsv41_l2pf: cuda:%d: %s", index, reason)
        return reason
    return ""


def _device_index(device: torch.device | int | str | None) -> int:
    if device is None or isinstance(device, int):
        return torch.cuda.current_device() if device is None else device
    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"calibrate: expected a CUDA device, got {device}")
    return torch.cuda.current_device() if device.index is None else device.index


def _obtain(index: int, force: bool) -> Calibration:
    key = json.loads(torch.ops.dsv41.calibration_key(index))
    path = cache_file(key)
    calibration = None if force else _cached(path, key)
    if calibration is not None:
        try:
            _apply(index, calibration)
            return calibration
        except (ValueError, RuntimeError) as error:
            logger.warning("dsv41_l2pf: %s is not used, measuring again: %s", path, str(error).splitlines()[0])
    calibration = Calibration.from_dict(json.loads(torch.ops.dsv41.calibrate(index)))
    _store(path, calibration)
    _apply(index, calibration)
    return calibration


def _apply(index: int, calibration: Calibration) -> None:
    torch.ops.dsv41.apply_calibration(
        index,
        calibration.form,
        calibration.num_ctas,
        calibration.piece_bytes,
        calibration.start_delay_ns,
        calibration.hot_knee_bytes,
        calibration.chosen_fill_gbps,
        calibration.partition_of_sm,
    )


def cache_file(key: dict) -> Path:
    """Where the calibration for a GPU, driver and library version is kept. key: those three, by name."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", f"{key['gpu']} {key['driver']} {key['library']}").strip("-").lower()
    return cache_dir() / "calibration" / f"{slug}.json"


def load_calibration(path: Path) -> Calibration:
    """Reads a file that `calibrate` kept. Raises FileNotFoundError, ValueError when it is not such a file, OSError."""
    found = read_json(path, _FORMAT)
    if found is None:
        raise FileNotFoundError(f"no such file: {path}")
    return Calibration.from_dict(found)


def _cached(path: Path, key: dict) -> Calibration | None:
    try:
        calibration = load_calibration(path)
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        logger.warning("dsv41_l2pf: %s is not used, measuring again: %s", path, error)
        return None
    differs = [name for name, value in key.items() if getattr(calibration, name) != value]
    return None if differs else calibration


def _store(path: Path, calibration: Calibration) -> None:
    try:
        write_json(path, _FORMAT, asdict(calibration))
    except OSError as error:
        logger.warning("dsv41_l2pf: the calibration cannot be kept for the next start: %s", error)
