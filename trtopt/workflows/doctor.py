"""A look at the machine, and what a report of a bug needs, in one zip file, without private data."""

from __future__ import annotations

import getpass
import io
import os
import platform
import zipfile
from importlib import metadata
from pathlib import Path

from trtopt.device.environment import survey as survey
from trtopt.errors import ArtifactError, WrongPathError
from trtopt.files.manifests import MANIFEST
from trtopt.files.outputs import Kind, head_of, write_output
from trtopt.files.scrubbing import private_words, scrubbed
from trtopt.records import MachineSurvey, to_json

_MAX_FILE_BYTES = 4 << 20
_FIRST = "survey.json"
_NAME_AT = 30  # where a zip has the name of its first file
BUNDLE = Kind("a bundle of trtopt doctor", lambda path: head_of(path)[_NAME_AT:].startswith(_FIRST.encode()))
_PATTERNS = (MANIFEST, "*.log", "*.layers.json")


def write_bundle(path: Path, survey: MachineSurvey, folder: Path | None) -> tuple[str, ...]:
    """Write the zip: the machine, packages, names of variables and, of a build folder, manifest and logs.

    Models, engines, samples and values of variables are never in it.

    Returns:
        The names of its files.
    """
    contents = {
        _FIRST: to_json(survey).decode(),
        "packages.txt": "".join(
            sorted(f"{found.metadata['Name']}=={found.version}\n" for found in metadata.distributions())
        ),
        "variables.txt": "".join(f"{name}\n" for name in sorted(os.environ)),
    }
    if folder is not None:
        contents |= _of_build(folder)
    words = private_words(os.environ, user=_user(), host=platform.node(), home=str(Path.home()))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in contents.items():
            archive.writestr(scrubbed(name, words), scrubbed(text, words))
    write_output(path, packed.getvalue(), BUNDLE)
    return tuple(contents)


def _of_build(folder: Path) -> dict[str, str]:
    """The build's texts; of a large one its end."""
    if not folder.is_dir():
        raise WrongPathError(f"{folder}: no such folder", "give one that `trtopt build` made, or none")
    found = {file for pattern in _PATTERNS for file in folder.glob(pattern)}
    files = sorted(file for file in found if file.is_file() and not file.is_symlink())  # the folder's own
    try:
        return {
            f"build/{file.name}": file.read_bytes()[-_MAX_FILE_BYTES:].decode(errors="replace")
            for file in files
        }
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be read ({error.strerror})", "check its permissions") from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        return ""
