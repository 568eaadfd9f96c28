"""The functions of b12x that are hooked. Recorded from b12x 1.5.1; older generations have fewer keywords."""

from __future__ import annotations

from .targets import Target

VERSION = "1.5.1"
ROCE = "RoCE windows"
MODULE = "b12x.comm.roce.roce_oneshot"
_RING = "b12x.comm.roce_ring.roce_oneshot"  # a renamed copy that some builds ship beside the first
_CLASS = "RoceOneshotAllReduce"


def _of(module: str, optional: bool) -> tuple[Target, ...]:
    return (
        Target(
            ROCE,
            "roce_all_reduce",
            module,
            f"{_CLASS}.all_reduce",
            ("self", "inp", "out", "stream", "channel_id", "peer_input_ptrs", "plan"),
            uses=2,
            optional=optional,
        ),
        Target(
            ROCE,
            "roce_all_gather",
            module,
            f"{_CLASS}.all_gather",
            ("self", "inp", "dim", "out", "stream", "plan"),
            uses=2,
            optional=optional,
        ),
        Target(ROCE, "asked", module, f"{_CLASS}.should_allreduce", ("self", "inp"), uses=2, optional=optional),
        Target(
            ROCE, "asked", module, f"{_CLASS}.should_all_gather", ("self", "inp", "dim"), uses=2, optional=optional
        ),
    )


TARGETS = (*_of(MODULE, optional=False), *_of(_RING, optional=True))
