"""b12x's RoCE one-shot collectives: a window around every one that its transport takes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..prefetcher import Prefetcher
from . import b12x_targets
from .hooks import Wrapper
from .install import Installation, install_targets, look
from .session import Session
from .targets import source_of, version_of

_installed: tuple[Installation, Session] | None = None


def _input(args: tuple, kwargs: dict) -> Any:
    return args[1] if len(args) > 1 else kwargs["inp"]


def _takes_all_reduce(args: tuple, kwargs: dict) -> bool:
    return bool(args[0].should_allreduce(_input(args, kwargs)))


def _takes_all_gather(args: tuple, kwargs: dict) -> bool:
    runtime, inp = args[0], _input(args, kwargs)
    if kwargs.get("columns") is not None:  # some builds gather chosen columns, with a question of their own
        return bool(runtime.should_all_gather_columns(inp, kwargs["columns"]))
    return bool(runtime.should_all_gather(inp, kwargs.get("dim", -1)))


def wrappers(session: Session) -> Mapping[str, Wrapper]:
    """The wrapper of each role in `b12x_targets`. A closed runtime raises when asked: that call is not numbered."""
    return {
        "roce_all_reduce": lambda function: session.collective(function, "all_reduce", _input, _takes_all_reduce),
        "roce_all_gather": lambda function: session.collective(function, "all_gather", _input, _takes_all_gather),
    }


def is_available() -> bool:
    """Whether b12x has RoCE collectives here, without importing it."""
    return source_of("b12x.comm.roce.roce_oneshot") is not None


def install(prefetcher: Prefetcher | None = None) -> Prefetcher:
    """Hooks b12x's RoCE collectives for people who call them from their own code, and returns the prefetcher.

    prefetcher: the one whose forwards the collectives belong to; None makes one from the environment. Attach it to a
    model (`prefetcher.attach(model)`) or bracket forwards (`with prefetcher.forward(num_tokens): ...`). The hooks count
    nothing outside of its forwards. Works before and after b12x is imported; a second call returns the first prefetcher.

    Raises ImportError when b12x is not installed or is not as expected, naming the function.
    Raises ValueError when another prefetcher is installed already.
    """
    global _installed
    if _installed is not None:
        first = _installed[1].prefetcher
        if prefetcher is not None and prefetcher is not first:
            raise ValueError("b12x is hooked for another prefetcher already: call uninstall() first")
        return first
    if not is_available():
        raise ImportError("dsv41_l2pf: b12x.comm.roce is not installed: pip install b12x")
    prefetcher = Prefetcher() if prefetcher is None else prefetcher
    logger = logging.getLogger("dsv41_l2pf")
    if not prefetcher.handle:
        logger.info("dsv41_l2pf: b12x is left alone: %s", prefetcher.reason)
        return prefetcher
    session = Session(prefetcher.config, logger, prefetcher, own_brackets=False)
    installation = look("b12x", version_of("b12x"), b12x_targets.TARGETS)
    if installation.problems:
        raise ImportError(f"dsv41_l2pf: {installation.summary()}: {'; '.join(installation.problems)}")
    install_targets(installation, wrappers(session), logger, strict=False)
    _installed = (installation, session)
    logger.info("dsv41_l2pf: %s", installation.summary())
    return prefetcher


def uninstall() -> None:
    """Takes the hooks off again; a second call does nothing."""
    global _installed
    if _installed is not None and _installed[0].hooks is not None:
        _installed[0].hooks.remove()
    _installed = None


