"""The trace event format that Perfetto and Chrome open: https://ui.perfetto.dev."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .slices import TRACKS, Slice

_PROCESS = 1


def chrome_events(slices: list[Slice]) -> list[dict[str, Any]]:
    """Complete events (`ph` X, times in us), one thread a track, and the names of process and threads."""
    events: list[dict[str, Any]] = [_metadata("process_name", 0, name="dsv41_l2pf: one step")]
    for thread, track in enumerate(TRACKS, start=1):
        events.append(_metadata("thread_name", thread, name=track))
        events.append(_metadata("thread_sort_index", thread, sort_index=thread))
        events += [_complete(thread, slice) for slice in slices if slice.track == track]
    return events


def write_chrome_trace(path: Path, slices: list[Slice], about: dict[str, str]) -> None:
    """Writes slices as JSON. about: what was traced, shown by Perfetto as the trace's metadata. Raises OSError."""
    path.write_text(json.dumps({"traceEvents": chrome_events(slices), "otherData": about}, indent=1))


def _metadata(what: str, thread: int, **arguments: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": thread, "args": arguments}


def _complete(thread: int, slice: Slice) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": slice.name,
        "cat": slice.track,
        "pid": _PROCESS,
        "tid": thread,
        "ts": slice.begin_us,
        "dur": slice.duration_us,
        "args": slice.arguments,
    }
