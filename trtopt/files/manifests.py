"""Manifests of build folders, what they vouch for, and plans of engines: written, signed, read, verified."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trtopt.errors import ArtifactError, WrongPathError
from trtopt.files.atomic import write_atomically
from trtopt.files.bounded_reading import read_bounded, reading_as, reason_of, sha256_of
from trtopt.files.signing import (
    SIGNATURE,
    Signer,
    SigningKey,
    check_signature,
    signature_of,
    signing_key,
    trusted_signer,
)
from trtopt.records import BatchPlan, Manifest, read_versioned, to_json
from trtopt.records.validation import check_manifest, check_plan

MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 64 << 20


def is_build_folder(folder: Path) -> bool:
    """Whether trtopt made it, in whatever version: other programs have manifests too."""
    path = folder / MANIFEST
    if not path.is_file():
        return False
    try:
        manifest = json.loads(read_bounded(path, _MAX_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and str(manifest.get("schema")).startswith("trtopt.build/")


def own_files(folder: Path) -> set[str]:
    """The files of a build folder that trtopt made, by relative path; of a damaged one those for sure."""
    own = {MANIFEST, SIGNATURE}
    try:
        manifest = read_manifest(folder, signed=False)
    except ArtifactError:
        return own
    for engine in manifest.engines:
        own |= {*engine.files}
    return own | manifest.files.keys()


def write_manifest(folder: Path, manifest: Manifest, files: Mapping[str, str] | None = None) -> Manifest:
    """Write `manifest.json`, signed if the environment has a key; returns what was written.

    `files` are the hashes that it vouches for, by default those of all files that are there.
    """
    vouched = hashes_of(folder) if files is None else dict(files)
    engines = {engine.path: engine.sha256 for engine in manifest.engines}  # as they were when they were built
    manifest = msgspec.structs.replace(manifest, files=vouched | engines)
    write_atomically(folder / MANIFEST, to_json(manifest))
    if (own := signing_key()) is not None:
        sign_manifest(folder, own)
    return manifest


def sign_manifest(folder: Path, key: SigningKey) -> None:
    """Sign the manifest in `folder`.

    Raises:
        OutputError: the signature cannot be written.
    """
    content = read_bounded(folder / MANIFEST, _MAX_MANIFEST_BYTES)
    write_atomically(folder / SIGNATURE, signature_of(content, key).encode())


def hashes_of(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a build folder but its manifest and signature, by relative path."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: sha256_of(path) for name, path in files.items() if name not in (MANIFEST, SIGNATURE)}


def read_manifest(folder: Path, *, signed: bool = True, signer: Signer | None = None) -> Manifest:
    """Read the manifest of a build folder; it must be `signed` by `signer`, or by the environment's if any.

    Raises:
        ArtifactError: there is none, it is cut short or edited beyond its schema, names files outside the
            folder, or is of a newer trtopt.
        SignatureError: it is not signed as it must be.
        UsageError, BackendMissingError: a key that the environment names cannot be used.
    """
    path = folder / MANIFEST
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a regular file")  # a pipe would be waited for
        content = read_bounded(path, _MAX_MANIFEST_BYTES)
        if signed and (trusted := signer or trusted_signer()) is not None:
            signature = folder / SIGNATURE
            line = read_bounded(signature, _MAX_MANIFEST_BYTES) if signature.is_file() else None
            check_signature(str(folder), content, line, trusted)
        manifest = read_versioned(content, Manifest)
        check_manifest(manifest)
    except FileNotFoundError:
        raise WrongPathError(
            f"{folder}: has no {MANIFEST}",
            "give a folder that `trtopt build` made, an engine in one, or an ONNX file",
        ) from None
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path}: cannot be read as a manifest: {reason_of(error)}",
            "build again with this version of trtopt",
        ) from None
    return manifest


def read_plan(path: Path) -> BatchPlan:
    """Read the file that `trtopt plan` wrote.

    Raises:
        ArtifactError: there is none, it is cut short or edited beyond its schema, or of a newer trtopt.
    """
    with reading_as("a plan", path, "give a file that `trtopt plan -o` wrote"):
        plan = read_versioned(read_bounded(path, _MAX_MANIFEST_BYTES), BatchPlan)
        check_plan(plan)
    return plan


def read_verified(path: Path, sha256: str, vouching: str = "manifest") -> bytes:
    """A file's content, once its hash is what the `vouching` file says: an engine is native code.

    Raises:
        ArtifactError: the file is missing, or is another one than was built.
    """
    again = {
        "plan": "plan again, or move the plan back: its paths to engines are relative to its folder",
        "manifest": f"`trtopt verify {shlex.quote(str(path.parent))} --repair` builds it again",
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
            f"{again}; or restore the file that was built: an engine is native code",
        )
    return content
