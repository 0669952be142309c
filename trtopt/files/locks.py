"""Locks against other processes that write the same file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trtopt.files.atomic import cannot_write
from trtopt.files.temporary import WAIT_S, locked

_LOCK_TIMEOUT_S = WAIT_S


@contextmanager
def lock(path: Path, wait_s: float | None = None) -> Iterator[None]:
    """Hold `path` + `.lock` against other processes."""
    with ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(path, _LOCK_TIMEOUT_S if wait_s is None else wait_s))
        except OSError as error:
            raise cannot_write(path, error) from None
        yield
