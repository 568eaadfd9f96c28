"""Small JSON files of ours: written whole or not at all, readable by their owner, checked before they are believed."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

_MAX_BYTES = 16 << 20


def write_json(path: Path, format: int, content: dict) -> None:
    """Writes `content` with a format number. Other processes see the old file or the new one, never a part.

    Raises OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"format": format, **content}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def read_json(path: Path, format: int) -> dict[str, Any] | None:
    """What `write_json` wrote, without the format number; None when there is no such file.

    Raises ValueError when it is not such a file, and OSError when it cannot be read.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"{path}: expected at most {_MAX_BYTES} bytes, got more")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got {error}") from None
    got = content.pop("format", None) if isinstance(content, dict) else None
    if got != format:
        raise ValueError(f"{path}: expected an object with format {format}, got {got!r}")
    return content
