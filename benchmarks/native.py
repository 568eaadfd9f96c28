"""libl2pf_bench.so: the rivals' kernels, a streamed read and a spin, launched on torch's current stream."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

LIBRARY = Path(__file__).resolve().parent / "lib" / "libl2pf_bench.so"
# The streamed read takes this many CTAs of 512 threads an SM: a whole GPU's worth.
_READ_CTAS_PER_SM = 4

_SIGNATURES = {
    "nothing": (ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p),
    "seed": (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p),
    "bulk_4k": (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p),
    "paced_load": (ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p),
    "read": (ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_void_p),
    "spin": (ctypes.c_double, ctypes.c_void_p),
    "reset_persisting_l2": (),
}


@cache
def load() -> ctypes.CDLL:
    """Loads the library once, its operators `torch.ops.dsv41_bench` included. Exits when it is not built."""
    if not LIBRARY.is_file():
        raise SystemExit(f"benchmarks: {LIBRARY} is missing: run `make bench-build`")
    torch.ops.load_library(str(LIBRARY))
    return ctypes.CDLL(str(LIBRARY))


@cache
def function(name: str) -> ctypes._CFuncPtr:
    """The C function `l2pf_bench_<name>`; see bench_api.h."""
    found = getattr(load(), f"l2pf_bench_{name}")
    found.argtypes = _SIGNATURES[name]
    found.restype = ctypes.c_int
    return found


def call(name: str, *args: int | float, stream: torch.cuda.Stream | None = None) -> None:
    """Launches on `stream`, the current one when None. Raises RuntimeError with the CUDA error's number."""
    target = torch.cuda.current_stream() if stream is None else stream
    error = function(name)(*args, target.cuda_stream)
    if error:
        raise RuntimeError(f"l2pf_bench_{name}: CUDA error {error}")


@cache
def _read_ctas() -> int:
    return _READ_CTAS_PER_SM * torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


def read(address: int, num_bytes: int) -> None:
    """Reads `num_bytes` from `address` with the whole GPU, at the DRAM rate where they are not in L2."""
    call("read", address, num_bytes, _read_ctas())


def spin(wait_us: float) -> None:
    """Keeps the current stream busy for `wait_us`."""
    call("spin", wait_us)


def reset_persisting_l2() -> None:
    """Ends the privilege of lines that a rival asked to keep, so that no arm pays for another's."""
    error = function("reset_persisting_l2")()
    if error:
        raise RuntimeError(f"l2pf_bench_reset_persisting_l2: CUDA error {error}")
