"""How long property tests search: the same short search every time, or, by an environment variable, a long random one.

L2PF_FUZZ_SECONDS=600 gives each of them that many seconds with new random seeds; what it finds, hypothesis prints as
the shortest example.
"""

import os
import time
from collections.abc import Callable

from hypothesis import HealthCheck, settings

LONG_SECONDS = float(os.environ.get("L2PF_FUZZ_SECONDS", "0"))
_COMMON = dict(deadline=None, database=None, suppress_health_check=list(HealthCheck))


def search(run: Callable[[settings], None], *, max_examples: int, **options: int) -> None:
    """`run(settings)` once, or again and again until the time is up. max_examples: of the short search."""
    if not LONG_SECONDS:
        run(settings(max_examples=max_examples, derandomize=True, **_COMMON, **options))
        return
    until, num_rounds = time.monotonic() + LONG_SECONDS, 0
    while time.monotonic() < until:
        run(settings(max_examples=200, **_COMMON, **options))
        num_rounds += 1
    print(f"{num_rounds} rounds of 200 random examples in {LONG_SECONDS:.0f} s")
