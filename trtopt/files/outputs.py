"""What a command may write over: nothing that it reads, and only what trtopt wrote, of the same kind.

Every output of a command is checked here before the work, and again when it takes its name.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from trtopt.errors import OutputError, UsageError
from trtopt.files.atomic import cannot_write, check_regular, write_atomically
from trtopt.files.bounded_reading import open_regular, read_bounded
from trtopt.files.manifests import is_build_folder, own_files
from trtopt.files.replace_folder import remove_abandoned
from trtopt.records import kind_of

_HEAD_BYTES = 4096
_RECORDS = ("manifest.json", "sweep.json", "ledger.json")
"""What makes a folder a build, a sweep or a tuned build."""
_IN_SWEEP = 2
"""How deep below a sweep's folder its builds and results lie."""

Files = Callable[[], Iterable[Path]]
_reads: ContextVar[tuple[Files, ...]] = ContextVar("_reads", default=())


@dataclass(frozen=True)
class Kind:
    """A kind of file that trtopt writes, and how one shows that trtopt wrote it."""

    name: str
    is_own: Callable[[Path], bool]


def json_kind(schema: str) -> Kind:
    """JSON that begins with `schema: trtopt.KIND/N`."""
    return Kind(f"{schema}'s JSON", lambda path: kind_of(head_of(path)) == schema)


def kind_beginning(name: str, start: bytes) -> Kind:
    """Files with a beginning of trtopt's own."""
    return Kind(name, lambda path: head_of(path).startswith(start))


def with_hash(text: str, comment: str) -> bytes:
    """A text that people edit, and in a comment at its end its hash, so that an edit shows."""
    lines = f"{text.rstrip()}\n"
    said = f"written by trtopt, SHA-256 of the lines above {hashlib.sha256(lines.encode()).hexdigest()}"
    return f"{lines}{comment.format(said)}\n".encode()


def hashed_kind(name: str, comment: str) -> Kind:
    """Texts of `with_hash` that nobody has edited."""

    def is_own(path: Path) -> bool:
        text = read_bounded(path).decode(errors="replace")
        return text.encode() == with_hash(text.rstrip().rpartition("\n")[0], comment)

    return Kind(name, is_own)


def head_of(path: Path) -> bytes:
    """The beginning of a regular file."""
    with open_regular(path) as file:
        return file.read(_HEAD_BYTES)


@contextmanager
def reading(files: Files) -> Iterator[None]:
    """Protect what a command reads, in addition, while it runs; `files` are asked for when one is at risk."""
    token = _reads.set((*_reads.get(), files))
    try:
        yield
    finally:
        _reads.reset(token)


def check_output(path: Path, kind: Kind) -> None:
    """Find out whether a file of this kind may be, and can be, written at `path`. Makes nothing."""
    try:
        if not path.parent.is_dir():
            raise OutputError(f"{path}: there is no folder {path.parent}", "make it, or name another file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        _check_replaceable(path, kind)
    except OSError as error:
        raise cannot_write(path, error) from None
    remove_abandoned(path)


def write_output(path: Path, content: bytes, kind: Kind) -> None:
    """Write a file of this kind, if it may still be written."""
    check_output(path, kind)
    write_atomically(path, content)


def _check_replaceable(path: Path, kind: Kind) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode):
        raise OutputError(f"{path}: is a link", "name the file itself, or remove the link")
    if stat.S_ISDIR(status.st_mode):
        raise OutputError(f"{path}: is a folder", "name a file")
    check_regular(path)
    if is_read(status):
        raise UsageError(f"{path}: is read by this command", "name another file to write")
    if _belongs_to_folder(path):
        raise UsageError(f"{path}: belongs to a folder of trtopt's", "name another file")
    if status.st_size and not kind.is_own(path):
        raise OutputError(
            f"{path}: already exists, and is not {kind.name} as trtopt wrote it",
            "name another file, or remove this one",
        )


def is_read(status: os.stat_result) -> bool:
    """Whether the command that runs reads the file, by whatever name."""
    for path in (path for files in _reads.get() for path in files()):
        with suppress(OSError):
            if os.path.samestat(path.stat(), status):
                return True
    return False


def _belongs_to_folder(path: Path) -> bool:
    """Whether the file is part of a build, or of a sweep."""
    folder = path.absolute().parent
    if path.name in _RECORDS or (is_build_folder(folder) and path.name in own_files(folder)):
        return True
    return any((above / "sweep.json").is_file() for above in list(folder.parents)[:_IN_SWEEP])
