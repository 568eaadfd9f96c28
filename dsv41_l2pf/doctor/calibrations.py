"""The calibrations that earlier processes kept, and which GPUs of this machine each is for."""

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
    """gpus: the indices of the GPUs here that it is for; GPUs of one model share it. age_s: since it was measured.
    values: None with a problem.
    """

    path: str
    gpus: tuple[int, ...]
    age_s: float
    values: dict | None
    problem: str = ""


def look_at_calibrations(num_gpus: int) -> list[CalibrationFacts]:
    """One entry a file in the user's cache directory."""
    wanted = [_file_of(index) for index in range(num_gpus)]
    return [
        _look_at(path, tuple(index for index, file in enumerate(wanted) if file == path))
        for path in sorted((cache_dir() / "calibration").glob("*.json"))
    ]


def _file_of(index: int) -> Path:
    return cache_file(json.loads(torch.ops.dsv41.calibration_key(index)))


def _look_at(path: Path, gpus: tuple[int, ...]) -> CalibrationFacts:
    try:
        age_s = max(0.0, time.time() - path.stat().st_mtime)
        return CalibrationFacts(str(path), gpus, age_s, asdict(load_calibration(path)))
    except (ValueError, OSError) as error:
        return CalibrationFacts(str(path), gpus, 0.0, None, f"it is not used, the GPU is measured again: {error}")
