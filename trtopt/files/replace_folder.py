"""Replace a folder by a new one, which keeps the user's files of the earlier one.

The user's files are linked into the new folder before it takes the name, so that they are under that name all
the time; where the file system can exchange two names at once, so is a whole folder.
"""

from __future__ import annotations

import ctypes
import errno
import filecmp
import os
import shutil
from collections.abc import Iterator, Set
from contextlib import suppress
from itertools import count
from pathlib import Path

from trtopt.files.links import link_or_copy
from trtopt.files.manifests import is_build_folder, own_files
from trtopt.files.temporary import (
    flush_names,
    locked_folder,
    remove,
    remove_unfinished,
    temporary_names,
    temporary_path,
)

ASIDE = "old"
_CURRENT_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


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


def put_in_place(new: Path, final: Path, made: Set[str]) -> Path | None:
    """Rename `new` to `final`; an earlier folder is renamed with its `made` files, to be removed.

    Returns:
        Where the earlier folder is now, if there was one, to be removed: see `emptied`.
    """
    if not final.exists() or not any(final.iterdir()):
        os.replace(new, final)
        flush_names(final.parent)
        return None
    carry_over(final, new, made)
    aside = temporary_path(final, ASIDE)
    os.replace(new, aside)
    if not _exchanged(aside, final):
        earlier = temporary_path(final, ASIDE)
        os.replace(final, earlier)
        try:
            os.replace(aside, final)
        except OSError:
            os.replace(earlier, final)
            raise
        aside = earlier
    flush_names(final.parent)
    return emptied(aside, final, made)  # files that arrived during the renames


def emptied(aside: Path, final: Path, made: Set[str]) -> Path:
    """An earlier folder, once the user's files are in `final`: under a temporary name, to be removed."""
    carry_over(aside, final, made)
    doomed = temporary_path(final, "tmp")
    os.replace(aside, doomed)
    return doomed


def carry_over(earlier: Path, new: Path, made: Set[str]) -> None:
    """Link the user's files of `earlier` into `new`; where a name is taken, next to it under another name."""
    for path in sorted(earlier.iterdir()):
        target = new / path.name
        if not _is_folder(path):
            if path.name not in made:
                _carry(path, target)
            continue
        below = _below(path.name, made)
        if any(path.iterdir()) and not any(user_files_in(path, below)):
            continue
        carried = next(name for name in _names(target) if not os.path.lexists(name) or _is_folder(name))
        if not carried.exists():
            carried.mkdir()
            shutil.copystat(path, carried)
        carry_over(path, carried, below)


def _below(folder: str, names: Set[str]) -> set[str]:
    """The names inside the folder, relative to it."""
    return {name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/")}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _names(target: Path) -> Iterator[Path]:
    """The preferred name, then alternatives where it is taken."""
    yield target
    yield from (target.with_name(f"{target.name}.kept{number or ''}") for number in count())


def _carry(path: Path, target: Path) -> None:
    carried = next(name for name in _names(target) if not os.path.lexists(name) or _is_same(path, name))
    if os.path.lexists(carried):  # linked before
        return
    link_or_copy(path, carried)


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
                remove(emptied(aside, path, own_files(aside)))
            else:
                remove(aside)


def _set_aside(path: Path) -> list[Path]:
    found = path.parent.glob(f"{temporary_names(path)}.{ASIDE}")
    return [one for one in found if not one.is_symlink() and (one.is_dir() or one.is_file())]
