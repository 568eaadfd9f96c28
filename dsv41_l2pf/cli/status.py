"""`status`: what the library itself says."""

from __future__ import annotations

from .. import status as library_status
from .output import AsJson, console_for, print_json


def status(as_json: AsJson = False) -> None:
    """Prints what the library knows: version, forms and devices."""
    found = library_status()
    if as_json:
        print_json(found)
    else:
        console_for(as_json).print_json(data=found)
