"""Futures for many small requests: only callers that wait pay for waiting."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING, RUNNING
from typing import Any, TypeVar

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_S = TypeVar("_S")

_guard = threading.RLock()
"""Held while a future gets its condition, or changes its state without one. A signal's handler may want it in
the thread that has it, and a fork may find it in a thread that the child has not.
"""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_guard._at_fork_reinit)  # type: ignore[attr-defined]


class InferenceFuture(Future[_T]):
    """A future whose condition is made for the first who waits for it, or wants to be called back.

    At saturation most are done before they are waited for. A condition for each, notified without waiters,
    was a fifth of a request's cost in Python.
    """

    def __init__(self) -> None:
        # `Future`'s own would make a condition. A test holds these to what it sets.
        self._state = PENDING
        self._result: _T | None = None
        self._exception = None
        self._waiters = []
        self._done_callbacks: list[Callable[[Future[_T]], object]] = []
        self._has_condition = False

    def __getattr__(self, name: str) -> Any:
        if name != "_condition":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        made = threading.Condition()
        with _guard:
            self._has_condition = True
            return self.__dict__.setdefault(name, made)

    def set_running_or_notify_cancel(self) -> bool:
        """As `Future` does it."""
        with _guard:
            if not self._has_condition and self._state == PENDING:
                self._state = RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def set_result(self, result: _T) -> None:
        """Answer. Whatever callbacks raise goes to the log: others need this thread."""
        with _guard:
            if not self._has_condition and self._state == RUNNING:
                self._result, self._state = result, FINISHED
                return
        self._complete(super().set_result, result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Fail; callbacks as in `set_result`."""
        self._complete(super().set_exception, exception)

    def _complete(self, complete: Callable[[_S], None], value: _S) -> None:
        try:
            complete(value)
        except Exception:
            raise  # not a callback's: `Future` itself catches those
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # the user's; no signal reaches another thread
            _log.exception("a callback of %r raised what would end its thread", self)

    def result(self, timeout: float | None = None) -> _T:
        """As `Future` does it."""
        if self._state == FINISHED and self._exception is None:
            return self._result  # type: ignore[return-value]  # set before the state is
        return super().result(timeout)
