"""Everything that the doctor found, and the sentence that follows from it."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

import torch

from .. import __version__
from ..calibration import current_gpu_reason
from ..config import Config, Variable, variables
from ..nvtx import has_nvtx
from ..ops import LIBRARY
from .calibrations import CalibrationFacts, look_at_calibrations
from .engines import EngineFacts, look_at_engines
from .gpus import GpuFacts, driver_release, look_at_gpus
from .self_test import SelfTest, run_self_test


@dataclass(frozen=True)
class Examination:
    """no_gpu: why this process cannot prefetch on a GPU, or ''. driver: its release, or ''. not_calibrated: why the
    current GPU could not be measured, or ''; the library's defaults serve then.
    """

    version: str
    library: str
    machine: str
    torch: str
    torch_cuda: str | None
    has_nvtx: bool
    driver: str
    no_gpu: str
    gpus: list[GpuFacts]
    not_calibrated: str
    variables: list[Variable]
    engines: list[EngineFacts]
    self_test: SelfTest
    calibrations: list[CalibrationFacts]

    @property
    def off_because(self) -> str:
        """Why nothing is prefetched here, or ''. The first reason that holds: environment, GPU, self-test."""
        refused = [variable.problem for variable in self.variables if variable.problem and not variable.is_unknown]
        if refused:
            return refused[0]
        if not self._config.enabled:
            return "DSV41_L2_PREFETCH=0"
        return self.no_gpu or self.self_test.problem

    @property
    def sentence(self) -> str:
        """The last line: on, or off because."""
        if self.off_because:
            return f"off because {self.off_because}"
        engines = "engines load it too" if self._config.requested else "engines need DSV41_L2_PREFETCH=1 for it"
        return f"on: attach() prefetches on {self.self_test.device}; {engines}"

    @property
    def findings(self) -> list[str]:
        """Everything that a person should look at."""
        found = [variable.problem for variable in self.variables if variable.problem]
        found += [f"cuda:{gpu.index}: {gpu.error}" for gpu in self.gpus if gpu.error]
        if self.not_calibrated:
            found.append(f"cuda:{torch.cuda.current_device()}: {self.not_calibrated}")
        found += [f"{entry.path}: {entry.problem}" for entry in self.calibrations if entry.problem]
        found += [finding for engine in self.engines for finding in engine.findings]
        if self.self_test.problem:
            found.append(f"self-test on {self.self_test.device}: {self.self_test.problem}")
        return found

    @property
    def _config(self) -> Config:
        return Config.from_env()

    def as_dict(self) -> dict[str, Any]:
        """For JSON: every field, findings, on and the sentence."""
        return {**asdict(self), "findings": self.findings, "on": not self.off_because, "sentence": self.sentence}


def examine(no_gpu: str) -> Examination:
    """Looks at everything. no_gpu: why there is no GPU to use, or ''. Takes about a second or two on a GPU."""
    gpus = [] if no_gpu else look_at_gpus()
    return Examination(
        version=__version__,
        library=str(LIBRARY),
        machine=platform.machine(),
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        has_nvtx=has_nvtx(),
        driver=driver_release(),
        no_gpu=no_gpu,
        gpus=gpus,
        # Before the self-test, which would measure a new GPU too, and before looking at what is kept.
        not_calibrated=(current_gpu_reason() or "") if gpus else "",
        variables=variables(),
        engines=look_at_engines(),
        self_test=run_self_test(on_gpu=bool(gpus)),
        calibrations=look_at_calibrations(len(gpus)),
    )
