"""Hides weight loading behind collectives in tensor-parallel decode. Importing it initialises no CUDA."""

import json

import torch

from . import ops

__version__ = ops.load()

from .config import Config  # noqa: E402  (the operators are registered first, so that no module sees half a library)
from .prefetcher import Prefetcher, attach  # noqa: E402

__all__ = ["Config", "Prefetcher", "__version__", "attach", "status"]


def status() -> dict:
    """Everything the library knows: version, forms, devices used so far, every prefetcher, signature and window."""
    return json.loads(torch.ops.dsv41.status())
