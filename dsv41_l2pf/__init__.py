"""Hides weight loading behind collectives in tensor-parallel decode. Importing it initialises no CUDA."""

from . import ops

__version__ = ops.load()

from .calibration import calibrate  # noqa: E402  (the operators are registered first, so that no module sees half a library)
from .compile import compile_backend  # noqa: E402
from .compile.registration import register as _register_backend  # noqa: E402
from .config import Config  # noqa: E402
from .prefetcher import Prefetcher, attach  # noqa: E402
from .state import read_state  # noqa: E402

__all__ = ["Config", "Prefetcher", "__version__", "attach", "calibrate", "compile_backend", "status"]

_register_backend()


def status() -> dict:
    """Everything the library knows: version, forms, devices used so far, every prefetcher, signature and window."""
    return read_state()
