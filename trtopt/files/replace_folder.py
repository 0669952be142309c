"""A new folder takes the place of an earlier one, and what others have put into that is in the new one too.

What is others' is linked into the new folder before it takes the name, so that it is under that name all the
time; where the file system can exchange two names at once, so is a whole folder.
"""

from __future__ import annotations

import ctypes
import errno
import filecmp
import os
import shutil
from collections.abc import Iterator, Set
from itertools import count
from pathlib import Path

from trtopt.files.temporary import flush_names, temporary_path

ASIDE = "old"
_CURRENT_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def others_in(folder: Path, own: Set[str]) -> Iterator[Path]:
    """What is in `folder` but not among its maker's `own` files: files, links and empty folders.

    Raises:
        OSError: a folder cannot be listed.
    """
    for path in sorted(folder.iterdir()):
        if not _is_folder(path):
            if path.name not in own:
                yield path
        elif any(path.iterdir()):
            yield from others_in(path, _below(path.name, own))
        else:
            yield path


def names_of_others(folder: Path, own: Set[str]) -> list[str]:
    """What others have put into `folder`, by the names at its top.

    Raises:
        OSError: a folder cannot be listed.
    """
    return list(dict.fromkeys(path.relative_to(folder).parts[0] for path in others_in(folder, own)))


def put_in_place(new: Path, final: Path, own: Set[str]) -> Path | None:
    """Rename `new` to `final`; an earlier folder steps aside with its maker's `own` files, to be removed.

    Returns:
        Where the earlier folder is now, if there was one, to be removed: see `emptied`.

    Raises:
        OSError: it cannot be done; the earlier folder is in its place.
    """
    if not final.exists() or not any(final.iterdir()):
        os.replace(new, final)
        flush_names(final.parent)
        return None
    carry_over(final, new, own)
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
    return emptied(aside, final, own)  # of what came while the names were changed


def emptied(aside: Path, final: Path, own: Set[str]) -> Path:
    """A folder that has stepped aside, once all that is others' is in `final`: under a name to be removed."""
    carry_over(aside, final, own)
    gone = temporary_path(final, "tmp")
    os.replace(aside, gone)
    return gone


def carry_over(earlier: Path, new: Path, own: Set[str]) -> None:
    """Link what others have put into `earlier` into `new`; what has its name there is kept beside it.

    Raises:
        OSError: something cannot be linked or copied.
    """
    for path in sorted(earlier.iterdir()):
        target = new / path.name
        if not _is_folder(path):
            if path.name not in own:
                _carry(path, target)
            continue
        below = _below(path.name, own)
        if any(path.iterdir()) and not any(others_in(path, below)):
            continue
        kept = next(name for name in _names(target) if not os.path.lexists(name) or _is_folder(name))
        if not kept.exists():
            kept.mkdir()
            shutil.copystat(path, kept)
        carry_over(path, kept, below)


def _below(folder: str, names: Set[str]) -> set[str]:
    """Those names that lie in the folder, as seen from there."""
    return {name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/")}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _names(target: Path) -> Iterator[Path]:
    """The name that is wanted, and those that are taken where something else has it."""
    yield target
    yield from (target.with_name(f"{target.name}.kept{number or ''}") for number in count())


def _carry(path: Path, target: Path) -> None:
    kept = next(name for name in _names(target) if not os.path.lexists(name) or _is_same(path, name))
    if os.path.lexists(kept):  # linked before
        return
    try:
        os.link(path, kept, follow_symlinks=False)
    except OSError:  # no links here, or not to what is somebody else's
        shutil.copy2(path, kept, follow_symlinks=False)


def _is_same(path: Path, target: Path) -> bool:
    if os.path.samestat(path.lstat(), target.lstat()):
        return True
    are_files = path.is_file() and target.is_file() and not path.is_symlink()
    return are_files and filecmp.cmp(path, target, shallow=False)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names at once; False where the system cannot.

    Raises:
        OSError: it can, but not these.
    """
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
