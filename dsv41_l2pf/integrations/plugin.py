"""An engine's plugin in this process: asked for by the environment, registered once, taken off again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from ..config import Config
from .hooks import Wrapper
from .install import Installation, install_targets, look
from .session import Session
from .targets import Target, version_of


class Plugin:
    """What every engine's entry point does; the engines differ in their targets and wrappers.

    targets: asked for when the plugin registers, so that it may depend on what is installed then. essential: parts
    without which nothing is hooked. installation, session: None while the plugin is not active.
    """

    def __init__(
        self,
        engine: str,
        logger: logging.Logger,
        targets: Callable[[], Iterable[Target]],
        essential: tuple[str, ...],
        wrappers: Callable[[Session, Installation], Mapping[str, Wrapper]],
    ) -> None:
        self._engine = engine
        self._logger = logger
        self._targets = targets
        self._essential = essential
        self._wrappers = wrappers
        self.installation: Installation | None = None
        self.session: Session | None = None

    def register(self) -> None:
        """Does nothing unless asked for; a second call does nothing.

        Raises SystemExit in strict mode when a function of the engine is not as expected.
        """
        if self.installation is not None:
            return
        try:
            config = Config.from_env()
        except ValueError as error:
            self._logger.error("dsv41_l2pf: prefetching is off: %s", error)
            return
        if not config.requested:
            return
        session = Session(config, self._logger)
        installation = look(self._engine, version_of(self._engine), self._targets(), self._essential)
        install_targets(installation, self._wrappers(session, installation), self._logger, strict=config.strict)
        self.installation, self.session = installation, session

    def unregister(self) -> None:
        """Takes every hook off again, but not the brackets of models that were loaded meanwhile."""
        if self.installation is not None and self.installation.hooks is not None:
            self.installation.hooks.remove()
            self.session.off = "the plugin was unregistered"
        self.installation = self.session = None
