"""A decode step that runs for minutes while everything about its windows changes at random.

    python3 tests/soak.py --seconds 540 [--seed 1]

After every change the step's output must have the same bits. At the end neither memory nor the latency of a collective
may have grown. On a GPU the step is a graph's replay, else an eager forward. Exit status 1: something moved.
"""

from __future__ import annotations

import argparse
import gc
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dsv41_l2pf as l2pf  # noqa: E402
from dsv41_l2pf.demo.small_model import SmallModel  # noqa: E402
from dsv41_l2pf.stopwatch import stopwatch  # noqa: E402

MIB = 1 << 20
NUM_TOKENS = 4
DELAY_US = 5.0
NUM_REPLAYS = 20
WARM_SHARE = 0.2  # of the changes: caches and pools fill, then memory must stay
MAX_GROWTH_BYTES = 16 * MIB
MAX_LATENCY_RATIO = {True: 1.05, False: 2.0}  # on a GPU; on a CPU, where others run too


@dataclass
class Found:
    """What a soak did and saw."""

    device: str
    seconds: float = 0.0
    seed: int = 0
    num_steps: int = 0
    changes: Counter = field(default_factory=Counter)
    num_different: int = 0
    allocated_bytes: list[int] = field(default_factory=list)  # by torch: warm, at the end
    used_bytes: list[int] = field(default_factory=list)  # of the GPU, or of this process: warm, at the end
    collective_us: list[float] = field(default_factory=list)  # before, after

    def problems(self) -> list[str]:
        found = []
        if self.num_different:
            found.append(f"{self.num_different} outputs differ")
        for name, (warm, end) in {"allocated": self.allocated_bytes, "used": self.used_bytes}.items():
            if end - warm > (MAX_GROWTH_BYTES if name == "used" else 0):
                found.append(f"memory {name} grew from {warm} to {end} bytes")
        before, after = self.collective_us
        if after > MAX_LATENCY_RATIO[self.device != "cpu"] * before:
            found.append(f"a collective takes {after:.2f} us, {before:.2f} before")
        return found


class Soak:
    """One model, its prefetcher, its step, and the changes that it must stand."""

    def __init__(self, device: str, seed: int, width: int = 0, num_layers: int = 4) -> None:
        torch.manual_seed(seed)
        self.on_gpu = device == "cuda"
        width = width or (1024 if self.on_gpu else 128)
        self.dtype = torch.bfloat16 if self.on_gpu else torch.float32
        self.random = random.Random(seed)
        self.found = Found(torch.cuda.get_device_name() if self.on_gpu else "cpu", seed=seed)
        self.make = lambda: SmallModel(width, num_layers, DELAY_US, device=device, dtype=self.dtype)
        self.model, self.x = self.make(), torch.randn(NUM_TOKENS, width, device=device).to(self.dtype)
        self.expected = self.model(self.x).clone()
        self.prefetcher = l2pf.attach(self.model, l2pf.Config())
        self.step: Callable[[], torch.Tensor] = self.learn_and_capture(self.model)
        self.changes = {
            name.removeprefix("change_"): getattr(self, name) for name in sorted(dir(self)) if name.startswith("change_")
        }

    def learn_and_capture(self, model: torch.nn.Module) -> Callable[[], torch.Tensor]:
        for _ in range(2):
            model(self.x)
        if not self.on_gpu:
            return lambda: model(self.x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(self.x)

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay

    # The changes

    def change_a_window(self) -> None:
        (signature,) = self.prefetcher.status()["signatures"]
        if not signature["windows"]:
            return
        window = self.random.choice(signature["windows"])
        budget_bytes = self.random.choice([-1, 0, 16, self.random.randrange(1, window["window_bytes"])])
        devices = [entry for entry in l2pf.status()["devices"] if entry["device"].startswith(self.x.device.type)]
        forms = ["", "auto", *devices[0]["forms"]]
        self.prefetcher.set_window(
            window["collective_index"],
            num_tokens=NUM_TOKENS,
            budget_bytes=budget_bytes,
            form=self.random.choice(forms),
        )

    def change_pause(self) -> None:
        self.prefetcher.pause()
        self.run()
        self.prefetcher.resume()

    def change_invalidate(self) -> None:
        self.prefetcher.invalidate()

    def change_learn(self) -> None:
        self.model(self.x)

    def change_capture(self) -> None:
        self.step = self.learn_and_capture(self.model)

    def change_weights(self) -> None:
        parameters = list(self.model.parameters())
        weight = self.random.choice(parameters)
        weight.data = weight.data.clone()
        if self.random.random() < 0.5:
            self.prefetcher.invalidate()
        self.step = self.learn_and_capture(self.model)

    def change_tune(self) -> None:
        self.change_capture()
        self.prefetcher.tune(self.step, rounds=2, progress=False)

    def change_another_model(self) -> None:
        other = self.make()
        prefetcher = l2pf.attach(other, l2pf.Config())
        step = self.learn_and_capture(other)
        first = step().clone()
        self.run()
        self.found.num_different += not torch.equal(step(), first)
        prefetcher.detach()

    # Running

    def run(self) -> None:
        for _ in range(NUM_REPLAYS):
            out = self.step()
        self.found.num_steps += NUM_REPLAYS
        self.found.num_different += not torch.equal(out, self.expected)

    def settle(self) -> None:
        """Lets go of what dead graphs held: CUDA tells us on a thread of its own, an operator then empties it."""
        for _ in range(4):
            gc.collect()
            if self.on_gpu:
                torch.cuda.synchronize()
            torch.ops.dsv41.l2_prefetch(self.x, [self.x])
            torch.ops.dsv41.l2_join(self.x)
            time.sleep(0.05)
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def note_memory(self) -> None:
        # Each time in the same state: the weights as they are, one graph.
        self.prefetcher.invalidate()
        self.change_capture()
        self.settle()
        if self.on_gpu:
            free, total = torch.cuda.mem_get_info()
            self.found.allocated_bytes.append(torch.cuda.memory_allocated())
            self.found.used_bytes.append(total - free)
        else:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.found.allocated_bytes.append(0)
            self.found.used_bytes.append(pages * 4096)

    def note_collective(self) -> None:
        data = torch.ones(4096, device=self.x.device)
        collective = lambda: torch.ops.dsv41.emulated_all_reduce(data, DELAY_US)  # noqa: E731
        num_a_step, step = 1, collective
        if self.on_gpu:  # many in a graph, so that no launch is in their time
            collective()
            graph, num_a_step = torch.cuda.CUDAGraph(), 20
            with torch.cuda.graph(graph):
                for _ in range(num_a_step):
                    collective()
            step = graph.replay
        time_us = stopwatch()
        # What disturbs it makes it longer, never shorter.
        self.found.collective_us.append(min(time_us(step, 50) for _ in range(11)) / num_a_step)

    def soak(self, seconds: float) -> Found:
        begin = time.monotonic()
        self.note_collective()
        names = list(self.changes)
        while (elapsed_s := time.monotonic() - begin) < seconds or not self.found.allocated_bytes:
            name = self.random.choice(names)
            self.changes[name]()
            self.found.changes[name] += 1
            self.run()
            if not self.found.allocated_bytes and elapsed_s > WARM_SHARE * seconds:
                self.note_memory()
        self.note_memory()
        self.note_collective()
        self.found.seconds = time.monotonic() - begin
        return self.found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=540)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--record", action="store_true", help="keep what was found for docs/reliability.md")
    args = arguments.parse_args()
    with torch.no_grad():
        found = Soak("cuda" if torch.cuda.is_available() else "cpu", args.seed).soak(args.seconds)
    changes = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(found.changes.items()))
    problems = found.problems()
    said = [
        f"{found.device}: {found.seconds:.0f} s, {found.num_steps} steps, seed {found.seed}",
        f"changes: {changes}",
        f"memory warm and at the end: allocated {found.allocated_bytes}, used {found.used_bytes}",
        f"a collective before and after: {', '.join(f'{us:.2f}' for us in found.collective_us)} us",
        "; ".join(problems) or "every output had the same bits, and nothing grew",
    ]
    print("soak: " + "\n  ".join(said))
    if args.record:
        name = "soak_cpu" if found.device == "cpu" else "soak_gpu"
        command = f"make soak SOAK_SECONDS={args.seconds:g}"
        subprocess.run([str(ROOT / "tools" / "records.py"), "add", name, command, "; ".join(said)], check=True)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
