"""Build folders: made under a temporary name, put in place when they are complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtopt.errors import OutputError, UsageError
from trtopt.files.atomic import cannot_write, scratch_beside
from trtopt.files.manifests import is_build_folder, own_files
from trtopt.files.outputs import is_read
from trtopt.files.replace_folder import put_in_place, remove_abandoned
from trtopt.files.temporary import locked_folder, remove


@contextmanager
def folder_in_progress(final: Path) -> Iterator[Path]:
    """A temporary folder next to `final` that takes its name if the block succeeds, else is removed.

    An earlier build folder of the same name is replaced, and the new one keeps the user's files of it;
    a folder that trtopt did not make is not replaced.
    """
    final = final.resolve()  # a link is followed, and the current folder has a name to take
    with locked_folder(final.parent):
        _check_replaceable(final)
    remove_abandoned(final)
    with scratch_beside(final, 0o777) as temporary:
        yield temporary
        _replace_folder(temporary, final)


def _check_replaceable(final: Path) -> None:
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
    """Rename `new` to `final`, with the user's files of the build that has the name now."""
    with locked_folder(final.parent):
        _check_replaceable(final)
        try:
            earlier = put_in_place(new, final, own_files(final))
        except OSError as error:
            raise cannot_write(final, error) from None
    if earlier is not None:
        remove(earlier)
