"""What `Prefetcher.tune` decided for one signature, and the file that keeps it for the next start."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

from .checks import is_number, is_whole, require
from .config import FORMS
from .files import read_json, write_json
from .tune_search import Outcome

_FORMAT = 1


@dataclass(frozen=True)
class WindowSetting:
    """One window of a plan and what it was set to.

    collective_index, kind, window_bytes: which window; they must agree with the plan that the setting is applied to.
    budget_bytes: at most this much of the window is prefetched; 0 switches it off. form: see `Config`.
    """

    collective_index: int
    kind: str
    window_bytes: int
    budget_bytes: int
    form: str


@dataclass(frozen=True)
class Tuning:
    """The outcome of one `Prefetcher.tune`.

    num_tokens, mode: the signature's. num_collectives: of one forward. windows: every window's setting.
    ratio: step time of these settings / that of off, rank by rank the slowest. noise: how far a ratio of 1 strays by
    chance. step_us: of off. reason: one sentence, why these settings. measured: every candidate's ratio, by name.
    """

    num_tokens: int
    mode: str
    num_collectives: int
    windows: list[WindowSetting]
    ratio: float
    noise: float
    step_us: float
    reason: str
    measured: dict[str, float]

    @classmethod
    def of(cls, signature: dict, outcome: Outcome) -> Tuning:
        """What a search decided for a signature, which is as in `status`."""
        return cls(
            num_tokens=signature["num_tokens"],
            mode=signature["mode"],
            num_collectives=signature["num_collectives"],
            windows=[
                WindowSetting(window["collective_index"], window["kind"], window["window_bytes"], *setting)
                for window, setting in zip(signature["windows"], outcome.settings)
            ],
            ratio=outcome.ratio,
            noise=outcome.noise,
            step_us=outcome.off_us,
            reason=outcome.reason,
            measured=outcome.measured,
        )

    @property
    def is_off(self) -> bool:
        """Whether nothing is prefetched."""
        return all(window.budget_bytes == 0 for window in self.windows)

    @property
    def num_off(self) -> int:
        """Windows that are switched off. A graph captured from now on has no node for them."""
        return sum(window.budget_bytes == 0 for window in self.windows)

    @classmethod
    def from_dict(cls, found: Any) -> Tuning:
        """Raises ValueError naming what is missing or out of range."""
        _require_fields(found, cls, "tuning")
        windows = found["windows"]
        _require(isinstance(windows, list), "windows", "a list", windows)
        for window in windows:
            _require_fields(window, WindowSetting, "window")
            for name in ("collective_index", "window_bytes", "budget_bytes"):
                _require(is_whole(window[name], 0), name, "a whole number >= 0", window[name])
            _require(window["form"] in FORMS, "form", "one of " + ", ".join(FORMS), window["form"])
            _require(isinstance(window["kind"], str), "kind", "a text", window["kind"])
        for name in ("num_tokens", "num_collectives"):
            _require(is_whole(found[name], 0), name, "a whole number >= 0", found[name])
        for name in ("mode", "reason"):
            _require(isinstance(found[name], str), name, "a text", found[name])
        for name in ("ratio", "noise", "step_us"):
            _require(is_number(found[name]), name, "a finite number", found[name])
        measured = found["measured"]
        _require(isinstance(measured, dict) and all(map(is_number, measured.values())), "measured", "numbers", measured)
        return cls(**{**found, "windows": [WindowSetting(**window) for window in windows]})


def _require(holds: bool, name: str, expected: str, got: object) -> None:
    require(holds, f"tuning: {name}", expected, got)


def _require_fields(found: Any, cls: type, what: str) -> None:
    names = {field.name for field in fields(cls)}
    _require(isinstance(found, dict) and set(found) == names, what, f"an object with {sorted(names)}", found)


def save(path: Path | str, tunings: list[Tuning], version: str) -> None:
    """Writes tunings as JSON, whole or not at all. It holds no addresses and no code. Raises OSError."""
    require(isinstance(path, (str, PathLike)), "path", "a path", path)
    write_json(Path(path), _FORMAT, {"library": version, "tunings": [asdict(tuning) for tuning in tunings]})


def load(path: Path | str) -> list[Tuning]:
    """Reads what `save` wrote. Raises FileNotFoundError, and ValueError when it is not such a file."""
    require(isinstance(path, (str, PathLike)), "path", "a path", path)
    found = read_json(Path(path), _FORMAT)
    if found is None:
        raise FileNotFoundError(f"{path}: expected a file of saved tunings, got no such file")
    if not isinstance(found.get("tunings"), list):
        raise ValueError(f"{path}: expected a list of tunings, got {found.get('tunings')!r}")
    return [Tuning.from_dict(entry) for entry in found["tunings"]]
