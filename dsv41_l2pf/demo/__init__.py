"""The demo: the main job on real input, on a GPU or on two gloo ranks."""

import importlib.util


def missing_packages(*names: str) -> list[str]:
    """Those of `names` that cannot be imported: the demo needs more than the library does."""
    return [name for name in names if importlib.util.find_spec(name) is None]
