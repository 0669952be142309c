"""The log: what trtopt, its worker processes, TensorRT and other native code say while they work.

Everything goes through Python's `logging`, below the logger `trtopt`; nothing is kept unless somebody asks.
What native code says is below `trtopt.heard`. Worker processes send what they log to the process that
started them (`relay`), which logs it under their process number. The values of environment variables whose
names look like secrets are taken out of what is written.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from trtopt.errors import OutputError
from trtopt.files.scrubbing import scrubbed, secret_words
from trtopt.printable import visible_lines
from trtopt.records import Record, to_json

SEVERITIES = {"verbose": logging.DEBUG, "info": logging.INFO}
SEVERITIES |= {"warning": logging.WARNING, "error": logging.ERROR}
"""Severities by their names in messages and files, and their levels in `logging`."""

HEARD = "trtopt.heard"
"""What native code says is logged below it, under the speaker's name."""

LOG = logging.getLogger("trtopt")
"""What the command line says on standard error in any case is logged here itself."""

LOG.addHandler(logging.NullHandler())  # else `logging` shows warnings of its own accord


class LogLine(Record, frozen=True, kw_only=True):
    """A line of a log file. `time` is ISO 8601 in UTC to the millisecond, `process` a process's number."""

    time: str
    severity: str
    source: str
    message: str
    process: int


class Logged(Record, frozen=True, kw_only=True, tag="logged"):
    """Something that a worker process logged; `at` is in seconds since the epoch."""

    severity: str
    logger: str
    message: str
    at: float


class _Lines(logging.Handler):
    """Writes each record as a line without secrets."""

    def __init__(self, name: str, write: Callable[[LogLine], None]) -> None:
        super().__init__()
        self.name = name
        self._write = write
        self._secrets = secret_words(os.environ)

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        try:
            self._write(self._line_of(record))
        except Exception:  # noqa: BLE001  (as `logging` wants it: a log that fails stops no work)
            self.handleError(record)

    def _line_of(self, record: logging.LogRecord) -> LogLine:
        when = datetime.fromtimestamp(record.created, timezone.utc)
        return LogLine(
            time=when.isoformat(timespec="milliseconds"),
            severity=_severity_of(record.levelno),
            source=record.name.removeprefix(f"{HEARD}.").removeprefix(f"{LOG.name}."),
            message=scrubbed(record.getMessage(), self._secrets),
            process=record.process or os.getpid(),
        )


def _severity_of(level: int) -> str:
    return next((name for name, least in reversed(SEVERITIES.items()) if level >= least), "verbose")


def show(verbosity: int) -> None:
    """Say on standard error what is logged: warnings of trtopt's own, with 1 all, with 2 verbose messages.

    What goes to `LOG` itself is left out: the command line has said that.
    """

    def write(line: LogLine) -> None:
        told = visible_lines(line.message)
        print(f"{line.severity}: {line.source}[{line.process}]: {told}", file=sys.stderr)

    handler = _Lines("shown", write)
    handler.addFilter(lambda record: record.name != LOG.name)
    if verbosity == 0:
        handler.setLevel(logging.WARNING)
        handler.addFilter(lambda record: not record.name.startswith(HEARD))
    else:
        _let_through(logging.INFO if verbosity == 1 else logging.DEBUG)
    _attach(handler)


def write_to(path: Path) -> None:
    """Append what is logged to a file, as JSON lines; each is written at once, several processes may share.

    Raises:
        OutputError: the file cannot be opened.
    """
    try:
        # a pipe that nobody reads would be waited for
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
        os.set_blocking(handle, True)
    except OSError as error:
        raise OutputError(
            f"--log-file {path}: cannot be written ({error.strerror})",
            "name a file in a folder that is there",
        ) from None

    def write(line: LogLine) -> None:
        try:
            os.write(handle, to_json(line, indent=None))
        except OSError as error:  # what is being done matters more than its log
            LOG.removeHandler(handler)
            print(f"trtopt: the log ends here, {path}: {error.strerror}", file=sys.stderr)

    handler = _Lines("file", write)
    _let_through(logging.INFO)
    _attach(handler)


def _attach(handler: _Lines) -> None:
    """In the place of an earlier command's in this process."""
    for earlier in [one for one in LOG.handlers if one.name == handler.name]:
        LOG.removeHandler(earlier)
    LOG.addHandler(handler)


def _let_through(level: int) -> None:
    LOG.setLevel(min(level, LOG.level or level))


def relay(level: int, send: Callable[[Logged], None]) -> None:
    """In a worker process: hand what is logged from `level` on to `send`."""
    LOG.setLevel(level)
    LOG.addHandler(_Relay(send))


class _Relay(logging.Handler):
    """Sends each record as it is: it is written elsewhere.

    Without the lock that `logging` puts around `emit`: `send` has one of its own, and while another thread
    waits for that here, collected garbage may log in the thread that holds it.
    """

    def __init__(self, send: Callable[[Logged], None]) -> None:
        super().__init__()
        self._send = send

    def handle(self, record: logging.LogRecord) -> bool:
        """See `logging.Handler.handle`."""
        self._send(
            Logged(
                severity=_severity_of(record.levelno),
                logger=record.name,
                message=record.getMessage(),
                at=record.created,
            )
        )
        return True


def log_relayed(logged: Logged, process: int) -> None:
    """Log here what a worker process has logged there."""
    logger = logging.getLogger(logged.logger)
    level = SEVERITIES[logged.severity]
    if logger.isEnabledFor(level):
        record = logger.makeRecord(logged.logger, level, "", 0, logged.message, (), None)
        record.created, record.process = logged.at, process
        logger.handle(record)


def heard(speaker: str, severity: str, message: str) -> None:
    """Log what native code says: `severity` is one of `SEVERITIES`."""
    logging.getLogger(f"{HEARD}.{speaker}").log(SEVERITIES[severity], "%s", message)
