"""Manifests of build folders, what they vouch for, and plans of engines: written, read, verified."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from trtopt.errors import ArtifactError, WrongPathError
from trtopt.files.atomic import write_atomically
from trtopt.files.bounded_reading import read_bounded, reading_as, sha256_of
from trtopt.records import BatchPlan, EngineArtifact, Manifest, kind_of, read_versioned, to_json
from trtopt.records.build import check_manifest
from trtopt.records.plan import check_plan

MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 64 << 20


def is_build_folder(folder: Path) -> bool:
    """Whether trtopt made it, in whatever version: other programs have manifests too."""
    path = folder / MANIFEST
    try:
        return path.is_file() and kind_of(read_bounded(path, _MAX_MANIFEST_BYTES)) == "trtopt.build"
    except (OSError, ValueError):
        return False


def own_files(folder: Path) -> set[str]:
    """The files of a build folder that trtopt made, by relative path; of a damaged one those for sure."""
    own = {MANIFEST}
    try:
        manifest = read_manifest(folder)
    except ArtifactError:
        return own
    for engine in manifest.engines:
        own |= {*engine.files}
    return own | manifest.files.keys()


def write_manifest(folder: Path, manifest: Manifest, files: Mapping[str, str] | None = None) -> Manifest:
    """Write `manifest.json`; returns what was written.

    `files` are the hashes that it vouches for, by default those of all files that are there.
    """
    vouched = hashes_of(folder) if files is None else dict(files)
    engines = {engine.path: engine.sha256 for engine in manifest.engines}  # as they were when they were built
    manifest = msgspec.structs.replace(manifest, files=vouched | engines)
    write_atomically(folder / MANIFEST, to_json(manifest))
    return manifest


def hashes_of(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a build folder but its manifest, by relative path."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: sha256_of(path) for name, path in files.items() if name != MANIFEST}


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a build folder."""
    path = folder / MANIFEST
    with reading_as("a manifest", path, "build again with this version of trtopt"):
        if not path.exists():
            raise WrongPathError(f"{folder}: has no {MANIFEST}", "give a folder that `trtopt build` made")
        if not path.is_file():
            raise ValueError("not a regular file")  # a pipe would be waited for
        manifest = read_versioned(read_bounded(path, _MAX_MANIFEST_BYTES), Manifest)
        check_manifest(manifest)
    return manifest


def read_plan(path: Path) -> BatchPlan:
    """Read the file that `trtopt plan` wrote."""
    with reading_as("a plan", path, "give a file that `trtopt plan -o` wrote"):
        plan = read_versioned(read_bounded(path, _MAX_MANIFEST_BYTES), BatchPlan)
        check_plan(plan)
    return plan


def read_verified(path: Path, sha256: str, vouching: str = "manifest") -> bytes:
    """A file's content, once its hash is what the `vouching` file says: an engine is native code."""
    again = {
        "plan": "plan again, or move the plan back: its paths to engines are relative to its folder",
        "manifest": f"`trtopt build --locked {shlex.quote(str(path.parent))}` builds the folder again",
    }.get(vouching, "build again")
    if not path.is_file():
        raise ArtifactError(f"{path}: cannot be read (no such file)", again)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})", again) from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ArtifactError(
            f"{path}: is not the file that the {vouching} vouches for (its SHA-256 differs); "
            "it was not loaded",
            f"{again}; or restore the file that was built",
        )
    return content


def plugin_libraries(engines: Iterable[EngineArtifact]) -> set[str]:
    """The paths of the libraries that engines need, as their manifest names them."""
    return {plugin.path for engine in engines for plugin in engine.plan.settings.plugins}


def is_library(name: str, library: str) -> bool:
    """Whether the user means that library: by its path or by a link to it."""
    return os.path.abspath(library) in (os.path.abspath(name), os.path.realpath(name))


def check_plugins(engines: Iterable[EngineArtifact], trust: Sequence[str], flag: str = "--trust") -> None:
    """Check that the user names engines' plugin libraries too: anyone can write a manifest that names any."""
    for library in sorted(plugin_libraries(engines)):
        if not any(is_library(name, library) for name in trust):
            raise ArtifactError(
                f"{library}: a plugin library that the engines need; it is native code and was not loaded",
                f"if you trust it, name it: {flag} {library}",
            )
