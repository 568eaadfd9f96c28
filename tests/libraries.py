"""What a library or a wheel of ours holds: read with binutils and with the cuobjdump that triton brings."""

import importlib.util
import re
import subprocess
from pathlib import Path

# By machine: sm_* is machine code, compute_* is PTX, which the driver compiles for GPUs that came later.
ARCHITECTURES = {
    "x86_64": {"sm_80", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121", "compute_90"},
    "aarch64": {"sm_90", "sm_100", "sm_103", "sm_120", "sm_121", "compute_90"},
}


def output_of(*command) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def cuobjdump(*arguments) -> str:
    (triton,) = importlib.util.find_spec("triton").submodule_search_locations
    return output_of(Path(triton, "backends/nvidia/bin/cuobjdump"), *arguments)


def kernel_resources(library: Path) -> list[dict]:
    """Every kernel, once an architecture: its name and what cuobjdump says it uses, such as REG or SHARED."""
    listed = cuobjdump("-res-usage", library)
    return [
        {"name": name} | {key: int(value) for key, value in re.findall(r"(\S+):(\d+)", usage)}
        for name, usage in re.findall(r"Function (\S+):\n(.+)", listed)
    ]


def cuda_architectures(library: Path) -> set[str]:
    """The architectures that every kernel of the library is there for."""
    listed = cuobjdump("--list-elf", "--list-ptx", library)
    found = re.findall(r"\.sm_(\d+[af]?)\.(cubin|ptx)$", listed, re.MULTILINE)
    counts: dict[str, int] = {}
    for number, kind in found:
        name = f"{'sm' if kind == 'cubin' else 'compute'}_{number}"
        counts[name] = counts.get(name, 0) + 1
    return {name for name, count in counts.items() if count == max(counts.values())}


def elf_machine(library: Path) -> str:
    name = re.search(r"Machine: +(.+)", output_of("readelf", "-h", library))[1]
    return {"Advanced Micro Devices X86-64": "x86_64", "AArch64": "aarch64"}[name]
