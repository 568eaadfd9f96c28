"""The file in which an engine keeps its tunings from one start to the next."""

from __future__ import annotations

import logging
from pathlib import Path

from ..prefetcher import Prefetcher


class TuningsFile:
    """The file that `Config.tunings` names. What is wrong with it is logged, and never stops the engine."""

    def __init__(self, path: str, logger: logging.Logger, *, is_written: bool) -> None:
        """path: '' is no file. is_written: the engine tunes, so that a file that is not there yet is no surprise."""
        self._path = Path(path) if path else None
        self._logger = logger
        self._is_written = is_written

    def load(self, prefetcher: Prefetcher) -> None:
        """The prefetcher expects what the file holds. A file that is not one of tunings is left alone from then on."""
        if self._path is None:
            return
        try:
            prefetcher.load_tunings(self._path)
        except FileNotFoundError as error:
            if not self._is_written:
                self._logger.warning("dsv41_l2pf: no tunings: %s", error)
        except (OSError, ValueError) as error:
            self._path = None
            self._logger.error("dsv41_l2pf: no tunings, and none will be written: %s", error)
        else:
            self._logger.info("dsv41_l2pf: %d tunings from %s", len(prefetcher.tunings.expected), self._path)

    def save(self, prefetcher: Prefetcher) -> None:
        """Writes every tuning of the prefetcher."""
        if self._path is None:
            return
        try:
            prefetcher.save_tunings(self._path)
        except OSError as error:
            self._path = None
            self._logger.error("dsv41_l2pf: tunings cannot be written: %s", error)
