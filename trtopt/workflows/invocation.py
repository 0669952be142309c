"""The command line and the time of day, as records keep them."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from pathlib import Path


def command_line() -> tuple[str, ...]:
    """The command for records; without the folders of the program, which are private."""
    return (Path(sys.argv[0]).name, *sys.argv[1:])


def now() -> str:
    """The time of day for records: ISO 8601, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
