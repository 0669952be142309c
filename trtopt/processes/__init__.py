"""Processes of trtopt's own: how they are forked, what passes between them, and what a death says."""

from __future__ import annotations

from collections.abc import Callable

OnProgress = Callable[[int, str, float | None], None]
"""Receives (index of the job, phase, fraction of the job or None); the last phase of a job is `DONE`."""
DONE = "done"
