"""What was recorded of a step, as slices with names, bytes and times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..labels import short_name, window_label, window_names
from .recorder import StepRecorder

if TYPE_CHECKING:
    from ..prefetcher import Prefetcher

FORWARD, COLLECTIVES, WINDOWS, READS = TRACKS = ("forward", "collectives", "windows", "reads")


@dataclass(frozen=True)
class Slice:
    """One bar of a timeline. track: one of `TRACKS`. Times in us from the forward's begin. arguments: bytes and names.

    A window lasts as long as its collective: when a prefetch itself ends is not measured. A slice of `reads` is what
    lies between two collectives.
    """

    track: str
    name: str
    begin_us: float
    duration_us: float
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def end_us(self) -> float:
        return self.begin_us + self.duration_us


def slices_of(prefetcher: Prefetcher, recorder: StepRecorder) -> list[Slice]:
    """The slices of the recorded forward, by begin. Raises RuntimeError when the step had no forward that counts."""
    if recorder.signature is None:
        raise RuntimeError("trace: expected a forward that the prefetcher counts, got none: is the model attached?")
    model, num_tokens, mode = recorder.signature
    times_us = recorder.clock.times_us()
    end_us = times_us[-1]
    names = window_names(prefetcher, model, num_tokens, mode)
    windows = _windows(prefetcher, model, num_tokens, mode)
    found = [Slice(FORWARD, f"forward {mode}, {num_tokens} tokens", 0.0, end_us)]
    if recorder.spans:
        found.append(Slice(READS, "before the first collective", 0.0, times_us[recorder.spans[0].opened]))
    for index, span in enumerate(recorder.spans):
        begin_us, closed_us = times_us[span.opened], times_us[span.closed]
        following = recorder.spans[index + 1 : index + 2]
        until_us = times_us[following[0].opened] if following else end_us
        weights = names.get(index, [])
        found.append(Slice(COLLECTIVES, f"{span.kind} {index}", begin_us, closed_us - begin_us))
        window = windows.get(index)
        if window is not None and window["budget_bytes"]:
            arguments = {key: window[key] for key in ("window_bytes", "budget_bytes", "form")} | {"weights": weights}
            found.append(
                Slice(WINDOWS, window_label(index, weights), begin_us, closed_us - begin_us, arguments)
            )
        read_bytes = window["window_bytes"] if window is not None else 0
        name = short_name(weights) if weights else f"after collective {index}"
        found.append(Slice(READS, name, closed_us, until_us - closed_us, {"read_bytes": read_bytes}))
    return sorted(found, key=lambda slice: slice.begin_us)


def _windows(prefetcher: Prefetcher, model: int, num_tokens: int, mode: str) -> dict[int, dict]:
    for signature in prefetcher.status()["signatures"]:
        if (signature["model"], signature["num_tokens"], signature["mode"]) == (model, num_tokens, mode):
            return {window["collective_index"]: window for window in signature["windows"]}
    return {}
