"""The GPUs of this process, their driver and what each supports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from ..state import read_state

_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class GpuFacts:
    """forms: what the library can use there; empty, with an error, when it cannot use the GPU."""

    index: int
    name: str
    compute_capability: str
    l2_bytes: int
    forms: tuple[str, ...]
    error: str = ""


def driver_release() -> str:
    """The release of the kernel driver, such as 580.159.04, or '' without one."""
    try:
        found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", _DRIVER.read_text())
    except OSError:
        return ""
    return found[0] if found else ""


def look_at_gpus() -> list[GpuFacts]:
    """One entry a GPU, after a tiny prefetch on each. Call it only where the library can use a GPU."""
    return [_look_at(index) for index in range(torch.cuda.device_count())]


def _look_at(index: int) -> GpuFacts:
    properties = torch.cuda.get_device_properties(index)
    forms, error = (), ""
    try:
        tiny = torch.zeros(1024, device=f"cuda:{index}")
        torch.ops.dsv41.l2_prefetch(tiny, [tiny])
        torch.ops.dsv41.l2_join(tiny)
        torch.cuda.synchronize(index)
        used = {entry["device"]: entry for entry in read_state()["devices"]}
        entry = used[f"cuda:{index}"]
        forms, error = tuple(entry["forms"]), entry["error"]
    except (RuntimeError, KeyError) as failure:
        error = str(failure).splitlines()[0]
    capability = f"{properties.major}.{properties.minor}"
    return GpuFacts(index, properties.name, capability, properties.L2_cache_size, forms, error)
