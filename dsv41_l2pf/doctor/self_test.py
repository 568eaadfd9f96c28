"""A live test: a prefetcher of its own learns a model and launches its windows; on a GPU the reads are timed."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

import torch

from ..config import MIB, Config
from ..demo.small_model import SmallModel
from ..prefetcher import Prefetcher

_NUM_TOKENS = 2
_ROUNDS = 15
_WON = 0.75  # of the rounds, at least
_DELAY_US = 400.0  # the host enqueues the timed read while the emulated collective waits
_MAX_WEIGHT_BYTES = 16 * MIB


@dataclass(frozen=True)
class SelfTest:
    """problem: why it failed, or ''. num_windows, num_launched: planned, and launched in the last forward.

    On a GPU: the median time of one read of `weight_bytes` in us, from DRAM (cold), after a window that prefetched
    them, and from L2 (hot).
    """

    device: str
    problem: str
    num_windows: int = 0
    num_launched: int = 0
    elapsed_s: float = 0.0
    weight_bytes: int = 0
    cold_us: float | None = None
    after_us: float | None = None
    hot_us: float | None = None

    @property
    def text(self) -> str:
        launched = f"{self.device}: {self.num_launched} of {self.num_windows} learned windows launched"
        if self.cold_us is None:
            return launched
        return (
            f"{launched}; a read of {self.weight_bytes / MIB:.1f} MiB takes {self.cold_us:.1f} us from DRAM, "
            f"{self.after_us:.1f} us after a prefetch, {self.hot_us:.1f} us from L2"
        )


def run_self_test(on_gpu: bool) -> SelfTest:
    """Runs on the current GPU, or on the CPU. Settings of the environment are left aside. Never raises."""
    begin_s = time.perf_counter()
    try:
        with torch.no_grad():
            found = _on_gpu() if on_gpu else _on_cpu()
    except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
        found = SelfTest("cuda" if on_gpu else "cpu", (str(error) or type(error).__name__).splitlines()[0])
    return replace(found, elapsed_s=time.perf_counter() - begin_s)


def _launched(device: str, prefetcher: Prefetcher) -> SelfTest:
    status = prefetcher.status()
    if not status["signatures"]:
        return SelfTest(device, status["reason"] or "no forward was learned")
    (signature,) = status["signatures"]
    planned, launched = signature["num_windows"], signature["num_launched"]
    problem = signature["reason"]
    if not problem and not 0 < launched == planned:
        problem = f"expected every learned window to be launched, got {launched} of {planned}"
    return SelfTest(device, problem, planned, launched)


def _on_cpu() -> SelfTest:
    model, x = SmallModel(hidden=64, num_layers=2, delay_us=1.0), torch.ones(_NUM_TOKENS, 64)
    prefetcher = Prefetcher(Config())
    prefetcher.attach(model)
    expected = [model(x) for _ in range(3)][0]
    found = _launched("cpu", prefetcher)
    prefetcher.detach()
    if not torch.equal(model(x), expected):
        return replace(found, problem=found.problem or "the output differs with and without prefetching")
    return found


class _TimedWindow:
    """One collective, its window, and the read that it is for."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.name = f"cuda:{torch.cuda.current_device()}"
        self.weight_bytes = min(properties.L2_cache_size // 4, _MAX_WEIGHT_BYTES) // MIB * MIB or MIB
        self.prefetcher = Prefetcher(Config())
        self._weight = torch.ones(self.weight_bytes // 4, device="cuda")
        self._flush = torch.zeros(2 * properties.L2_cache_size, dtype=torch.uint8, device="cuda")
        self._data = torch.ones(4096, device="cuda")

    def read_us(self, *, is_hot: bool = False) -> float:
        """Empties L2, runs the collective with its window, and times the read."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.prefetcher.forward(_NUM_TOKENS):
            self._flush.add_(1)
            if is_hot:
                torch.sum(self._weight)
            with self.prefetcher.collective(self._data, "all_reduce"):
                torch.ops.dsv41.emulated_all_reduce(self._data, _DELAY_US)
            torch.ops.dsv41.record_weight([self._weight])
            begin.record()
            torch.sum(self._weight)
            end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end)

    def set_budget(self, budget_bytes: int) -> None:
        self.prefetcher.set_window(0, num_tokens=_NUM_TOKENS, budget_bytes=budget_bytes)


def _on_gpu() -> SelfTest:
    window = _TimedWindow()
    for _ in range(3):
        window.read_us()
    found = _launched(window.name, window.prefetcher)
    if found.problem:
        return found
    cold, after, hot = [], [], []
    for _ in range(_ROUNDS):
        window.set_budget(0)
        cold.append(window.read_us())
        hot.append(window.read_us(is_hot=True))
        window.set_budget(window.weight_bytes)
        after.append(window.read_us())
    cold_us, after_us, hot_us = map(statistics.median, (cold, after, hot))
    problem = ""
    if sum(a < c for a, c in zip(after, cold)) < _WON * _ROUNDS:
        problem = f"a read takes {after_us:.1f} us after a prefetch and {cold_us:.1f} us without: it brings nothing"
    return replace(
        found, problem=problem, weight_bytes=window.weight_bytes, cold_us=cold_us, after_us=after_us, hot_us=hot_us
    )
