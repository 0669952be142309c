"""The log: messages of trtopt, its worker processes, TensorRT and other native code.

Everything goes through Python's `logging`, below the logger `trtopt`; nothing is kept unless requested.
Messages of native code are below `trtopt.heard`. Worker processes send what they log to the process that
started them (`relay`), which logs it under their process number. The values of environment variables whose
names look like secrets are removed from what is written.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from trtopt.errors import OutputError
from trtopt.printable import visible_lines
from trtopt.records import Record, to_json

SEVERITIES = {"verbose": logging.DEBUG, "info": logging.INFO}
SEVERITIES |= {"warning": logging.WARNING, "error": logging.ERROR}
"""Severities by their names in messages and files, and their levels in `logging`."""

HEARD = "trtopt.heard"
"""The parent logger of native code's messages, which are logged under their source's name."""

LOG = logging.getLogger("trtopt")
"""Messages that the command line prints on standard error anyway are logged here."""

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


_OF_LOGINS = re.compile(r"XDG_SESSION_|(DESKTOP_|GDM)SESSION$")
"""Common words that are no secrets, such as user, ubuntu and plasma."""
_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|(?<=\w)(?<!OLD)PWD|CREDENTIAL|AUTH|COOKIE|SESSION", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"://[^/@\s]*:([^/@\s]+)@")
"""A password in an address, as of a proxy or a package index."""
_SHORTEST = 4
"""Secrets below this length are also common words: texts are not searched for them."""


def secrets_in(environment: Mapping[str, str]) -> list[str]:
    """Values of variables whose names look like secrets, and passwords in addresses.

    Also in JSON escapes. Longest first, as one may contain another.
    """
    words = {
        value for name, value in environment.items() if _SECRET.search(name) and not _OF_LOGINS.match(name)
    }
    words |= {word for value in environment.values() for word in _IN_ADDRESS.findall(value)}
    words |= {json.dumps(word, ensure_ascii=escaped)[1:-1] for word in words for escaped in (False, True)}
    return sorted((word for word in words if len(word) >= _SHORTEST), key=len, reverse=True)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with `***` in place of each."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


class _Lines(logging.Handler):
    """Writes each record as a line without secrets."""

    def __init__(self, name: str, write: Callable[[LogLine], None]) -> None:
        super().__init__()
        self.name = name
        self._write = write
        self._secrets = secrets_in(os.environ)

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
            message=without_secrets(record.getMessage(), self._secrets),
            process=record.process or os.getpid(),
        )


def _severity_of(level: int) -> str:
    return next((name for name, least in reversed(SEVERITIES.items()) if level >= least), "verbose")


def show(verbosity: int) -> None:
    """Print the log on standard error: warnings of trtopt, with 1 all messages, with 2 verbose ones too.

    Below 0, only errors.

    Messages to `LOG` itself are omitted: the command line has printed them.
    """

    def write(line: LogLine) -> None:
        text = visible_lines(line.message)
        print(f"{line.severity}: {line.source}[{line.process}]: {text}", file=sys.stderr)

    handler = _Lines("shown", write)
    handler.addFilter(lambda record: record.name != LOG.name)
    if verbosity <= 0:
        handler.setLevel(logging.WARNING if verbosity == 0 else logging.ERROR)
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
        # opening a pipe without a reader would block
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
        os.set_blocking(handle, True)
    except OSError as error:
        raise OutputError(
            f"--log-file {path}: cannot be written ({error.strerror})",
            "name a file in an existing folder",
        ) from None

    def write(line: LogLine) -> None:
        try:
            os.write(handle, to_json(line, indent=None))
        except OSError as error:  # the work matters more than its log
            LOG.removeHandler(handler)
            print(f"trtopt: the log ends here, {path}: {error.strerror}", file=sys.stderr)

    handler = _Lines("file", write)
    _let_through(logging.INFO)
    _attach(handler)


def _attach(handler: _Lines) -> None:
    """Replace the handler of an earlier command in this process."""
    for earlier in [one for one in LOG.handlers if one.name == handler.name]:
        LOG.removeHandler(earlier)
    LOG.addHandler(handler)


def _let_through(level: int) -> None:
    LOG.setLevel(min(level, LOG.level or level))


@contextmanager
def relay(level: int, send: Callable[[Logged], None]) -> Iterator[None]:
    """In a process that another one has started: pass records from `level` on to `send` meanwhile."""
    handler, before = _Relay(send), LOG.level
    LOG.setLevel(level)
    LOG.addHandler(handler)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(before)


class _Relay(logging.Handler):
    """Sends each record unchanged: another process writes it.

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
    """Log a record of a worker process in this process."""
    logger = logging.getLogger(logged.logger)
    level = SEVERITIES[logged.severity]
    if logger.isEnabledFor(level):
        record = logger.makeRecord(logged.logger, level, "", 0, logged.message, (), None)
        record.created, record.process = logged.at, process
        logger.handle(record)


def heard(speaker: str, severity: str, message: str) -> None:
    """Log a message of native code: `severity` is one of `SEVERITIES`."""
    logging.getLogger(f"{HEARD}.{speaker}").log(SEVERITIES[severity], "%s", message)
