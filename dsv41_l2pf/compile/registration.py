"""Makes `torch.compile(backend="dsv41")` work wherever the package is imported, also from a checkout.

An installed package has an entry point, which Dynamo looks for at the first name that it does not know. A checkout has
none, so it is shown to `importlib.metadata` as a distribution with that one entry point. Dynamo itself is not imported:
that would take every user of the package a second.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path

from ..ops import DISTRIBUTION, PACKAGE, package_version
from .backend import dsv41

NAME = "dsv41"
_ENTRY_POINTS = f"[torch_dynamo_backends]\n{NAME} = dsv41_l2pf.compile:dsv41\n"


class _Checkout(Distribution):
    def read_text(self, filename: str) -> str | None:
        metadata = f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {package_version()}\n"
        return {"METADATA": metadata, "entry_points.txt": _ENTRY_POINTS}.get(filename)

    def locate_file(self, path: str) -> Path:
        return PACKAGE.parent / path


class _Finder:
    """Last in `sys.meta_path`: an installed distribution of this name comes first and hides this one."""

    def find_spec(self, *_args: object, **_kwargs: object) -> None:
        return None

    def find_distributions(
        self, context: DistributionFinder.Context = DistributionFinder.Context()
    ) -> Iterator[Distribution]:
        if context.name in (None, DISTRIBUTION):
            yield _Checkout()


def register() -> None:
    """Called once, when the package is imported."""
    sys.meta_path.append(_Finder())
    if "torch._dynamo.backends.registry" not in sys.modules:
        return
    from torch._dynamo.backends import registry

    # It may have looked for entry points before we were here. If it found ours it registers what that loads, perhaps
    # right now. Asking in public which ones it found would import Inductor.
    if NAME not in registry._BACKENDS:
        registry.register_backend(dsv41, name=NAME)
