"""What a command may write over: nothing that it reads, and only what trtopt wrote, of the same kind.

Every output of a command is checked here before the work, and again when it takes its name. A folder that is
replaced keeps the user's files.
"""

from __future__ import annotations

import ctypes
import errno
import filecmp
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path

from trtopt.errors import OutputError, UsageError
from trtopt.files.atomic import (
    check_regular,
    flush_names,
    link_or_copy,
    locked_folder,
    remove,
    remove_unfinished,
    scratch_beside,
    temporary_names,
    temporary_path,
    write_atomically,
    writing,
)
from trtopt.files.bounded_reading import open_regular, read_bounded
from trtopt.files.manifests import MANIFEST, is_build_folder, own_files
from trtopt.records import kind_of

ASIDE = "old"
_CURRENT_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV)


def user_files_in(folder: Path, made: Set[str]) -> Iterator[Path]:
    """Files, links and empty folders in `folder` that are not among the `made` files."""
    for path in sorted(folder.iterdir()):
        if not _is_folder(path):
            if path.name not in made:
                yield path
        elif any(path.iterdir()):
            yield from user_files_in(path, _below(path.name, made))
        else:
            yield path


def names_of_user_files(folder: Path, made: Set[str]) -> list[str]:
    """Top-level names of the user's files in `folder`."""
    return list(dict.fromkeys(path.relative_to(folder).parts[0] for path in user_files_in(folder, made)))


def retire(aside: Path, final: Path, made: Set[str]) -> Path:
    """An earlier folder, once the user's files are in `final`: under a temporary name, to be removed."""
    carry_over(aside, final, made)
    doomed = temporary_path(final, "tmp")
    os.replace(aside, doomed)
    return doomed


def carry_over(earlier: Path, new: Path, made: Set[str]) -> None:
    """Link the user's files of `earlier` into `new`; where a name is taken, next to it under another name."""
    for path in user_files_in(earlier, made):
        inside, target = path.relative_to(earlier), new
        folders = [one for one in reversed(inside.parents) if one.name]
        for folder in [*folders, inside] if _is_folder(path) else folders:
            target = _name_for(target / folder.name, _is_folder)
            if not target.exists():
                target.mkdir()
                shutil.copystat(earlier / folder, target)
        if not _is_folder(path):
            target = _name_for(target / path.name, partial(_is_same, path))
            if not os.path.lexists(target):  # else linked before
                link_or_copy(path, target)


def _below(folder: str, names: Set[str]) -> set[str]:
    """The names inside the folder, relative to it."""
    return {name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/")}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _name_for(target: Path, is_fitting: Callable[[Path], bool]) -> Path:
    """The preferred name, else the first alternative that is free or has what fits already."""
    others = (target.with_name(f"{target.name}.kept{number or ''}") for number in count())
    return next(name for name in chain([target], others) if not os.path.lexists(name) or is_fitting(name))


def _is_same(path: Path, target: Path) -> bool:
    if os.path.samestat(path.lstat(), target.lstat()):
        return True
    are_files = path.is_file() and target.is_file() and not path.is_symlink()
    return are_files and filecmp.cmp(path, target, shallow=False)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names at once; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    first, second = os.fsencode(one), os.fsencode(other)
    if rename(_CURRENT_FOLDER, first, _CURRENT_FOLDER, second, _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(other))


def remove_abandoned(path: Path) -> None:
    """Take away what killed runs have left of `path`, and bring back what they had set aside for it."""
    remove_unfinished(path)
    if not _set_aside(path):
        return
    with locked_folder(path.parent), suppress(OSError):
        for aside in _set_aside(path):
            if not path.exists() and is_build_folder(aside):
                os.replace(aside, path)
            elif path.is_dir() and aside.is_dir():
                remove(retire(aside, path, own_files(aside)))
            else:
                remove(aside)


def _set_aside(path: Path) -> list[Path]:
    found = path.parent.glob(f"{temporary_names(path)}{ASIDE}")
    return [one for one in found if not one.is_symlink() and (one.is_dir() or one.is_file())]


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


def kind_beginning(name: str, *starts: bytes) -> Kind:
    """Files with a beginning of trtopt's own, one of these."""
    return Kind(name, lambda path: head_of(path).startswith(starts))


def with_hash(text: str, comment: str) -> bytes:
    """A text that people edit, and in a comment at its end its hash, so that an edit shows."""
    lines = f"{text.rstrip()}\n"
    said = f"written by trtopt, SHA-256 of the lines above {hashlib.sha256(lines.encode()).hexdigest()}"
    return f"{lines}{comment.format(said)}\n".encode()


def hashed_kind(name: str, comment: str) -> Kind:
    """Texts of `with_hash` that have not been edited."""

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
    """Protect what a command reads, in addition, while it runs; `files` is called when one is at risk."""
    token = _reads.set((*_reads.get(), files))
    try:
        yield
    finally:
        _reads.reset(token)


def check_output(path: Path, kind: Kind) -> None:
    """Find out whether a file of this kind may be, and can be, written at `path`. Makes nothing."""
    with writing(path):
        if not path.parent.is_dir():
            raise OutputError(f"{path}: there is no folder {path.parent}", "make it, or name another file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        _check_file_replaceable(path, kind)
    remove_abandoned(path)


def write_output(path: Path, content: bytes, kind: Kind) -> None:
    """Write a file of this kind, if it may still be written."""
    check_output(path, kind)
    write_atomically(path, content)


def _check_file_replaceable(path: Path, kind: Kind) -> None:
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


@contextmanager
def folder_in_progress(final: Path) -> Iterator[Path]:
    """A temporary folder next to `final` that takes its name if the block succeeds, else is removed.

    An earlier build folder of the same name is replaced, and the new one keeps the user's files of it;
    a folder that trtopt did not make is not replaced.
    """
    final = final.resolve()  # a link is followed, and the current folder has a name to take
    with locked_folder(final.parent):
        check_folder_replaceable(final)
    remove_abandoned(final)
    with scratch_beside(final, 0o777) as temporary:
        yield temporary
        is_current = final.exists() and final.samefile(".")
        _replace_folder(temporary, final)
        if is_current:  # else relative paths were of the earlier one
            os.chdir(final)


_ESCAPED = re.compile(rb"\\([0-7]{3})")


def _mount_points() -> Iterator[Path]:
    """As the kernel lists them: the fifth word of each line, with spaces as octal numbers."""
    with suppress(OSError), Path("/proc/self/mountinfo").open("rb") as lines:
        for line in lines:
            yield Path(os.fsdecode(_ESCAPED.sub(lambda one: bytes([int(one[1], 8)]), line.split(b" ")[4])))


def check_folder_replaceable(final: Path) -> None:
    """Refuse what `folder_in_progress` does not replace; `final` is resolved."""
    for point in _mount_points():  # takes no other name, and holds what is elsewhere too
        if point == final or final in point.parents:
            such = final / "engines"
            raise OutputError(f"{point}: is a mount point", f"name a new folder, such as -o {such}")
    if is_build_folder(final):
        for file in (final / name for name in own_files(final)):
            if file.exists() and is_read(file.stat()):
                raise UsageError(
                    f"{final}: its file {file.name} is read by this command", "choose another name with -o"
                )
        return
    if not final.exists():
        return
    if not final.is_dir() or any(final.iterdir()):
        raise OutputError(
            f"{final}: exists and is not a build folder of trtopt's",
            "choose another name with -o, or remove it",
        )


def _replace_folder(new: Path, final: Path) -> None:
    """Rename `new` to `final`, with the user's files of the build that has the name now and is removed.

    They are linked into the new folder first, so that they are under the name all the time; where the file
    system can exchange two names at once, so is a whole folder.
    """
    with locked_folder(final.parent), writing(final):
        check_folder_replaceable(final)
        if not final.exists() or not any(final.iterdir()):
            os.replace(new, final)
            flush_names(final.parent)
            return
        made = own_files(final)
        carry_over(final, new, made)
        aside = temporary_path(final, ASIDE)
        os.replace(new, aside)
        if not _exchanged(aside, final):
            earlier = temporary_path(final, ASIDE)
            try:
                os.replace(final, earlier)
            except OSError as error:
                os.replace(aside, new)
                if error.errno != errno.EXDEV:
                    raise
                _take_in(new, final, made)
                return
            try:
                os.replace(aside, final)
            except OSError:
                os.replace(earlier, final)
                raise
            aside = earlier
        flush_names(final.parent)
        doomed = retire(aside, final, made)  # files that arrived during the renames
        with suppress(OSError):  # not every file system has permissions
            shutil.copymode(doomed, final)
    remove(doomed)


def _take_in(new: Path, final: Path, made: Set[str]) -> None:
    """File by file, the manifest last: a folder of a container's image takes no other name."""
    ours = own_files(new)
    names = {str(path.relative_to(new)) for path in user_files_in(new, set()) if not _is_folder(path)}
    for name in sorted(names, key=lambda name: (name in ours, name == MANIFEST)):
        (final / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(new / name, final / name)
    for name in made - names:
        (final / name).unlink(missing_ok=True)
