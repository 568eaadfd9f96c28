"""The calibrations that earlier processes kept, and which GPU of this machine each is for."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..calibration import cache_file, load_calibration
from ..config import cache_dir


@dataclass(frozen=True)
class CalibrationFacts:
    """gpu_index: the GPU here that it is for, None for none. age_s: since it was measured. values: None with a problem."""

    path: str
    gpu_index: int | None
    age_s: float
    values: dict | None
    problem: str = ""


def look_at_calibrations(num_gpus: int) -> list[CalibrationFacts]:
    """One entry a file in the user's cache directory."""
    files_of_gpus = {_file_of(index): index for index in range(num_gpus)}
    return [_look_at(path, files_of_gpus.get(path)) for path in sorted((cache_dir() / "calibration").glob("*.json"))]


def _file_of(index: int) -> Path:
    return cache_file(json.loads(torch.ops.dsv41.calibration_key(index)))


def _look_at(path: Path, gpu_index: int | None) -> CalibrationFacts:
    try:
        age_s = max(0.0, time.time() - path.stat().st_mtime)
        return CalibrationFacts(str(path), gpu_index, age_s, asdict(load_calibration(path)))
    except (ValueError, OSError) as error:
        return CalibrationFacts(str(path), gpu_index, 0.0, None, f"it is not used, the GPU is measured again: {error}")
