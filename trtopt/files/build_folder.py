"""Files that appear whole or not at all: temporary names, atomic renames, locks, build folders."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from trtopt.errors import ArtifactError, OutputError
from trtopt.files.bounded_reading import open_regular, read_bounded, reason_of
from trtopt.files.replace_folder import ASIDE, emptied, put_in_place
from trtopt.files.signing import (
    SIGNATURE,
    Signer,
    SigningKey,
    check_signature,
    signature_of,
    signing_key,
    trusted_signer,
)
from trtopt.files.temporary import (
    WAIT_S,
    locked,
    locked_folder,
    remove,
    remove_unfinished,
    temporary_file,
    temporary_folder,
    temporary_names,
)
from trtopt.records import BatchPlan, EngineArtifact, Manifest, read_versioned, to_json
from trtopt.records.validation import check_manifest, check_plan

MANIFEST = "manifest.json"
_LOCK_TIMEOUT_S = WAIT_S
_MAX_MANIFEST_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name beside `path`, flush it to disk and rename it.

    Temporary files of killed runs are removed.

    Raises:
        OutputError: the folder cannot be written to, or the disk is full; nothing is left behind.
    """
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_regular(path)
        remove_unfinished(path)
        handle, temporary = temporary_file(path)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _check_regular(path: Path) -> None:
    """A regular file may be replaced; a device or a pipe may not.

    Raises:
        OSError: there is one.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "no regular file")


def remove_abandoned(path: Path) -> None:
    """Remove temporary files of killed runs for `path`, and restore folders that they had renamed.

    Raises:
        OutputError: there is such, and another process keeps its folder for itself.
    """
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


def cannot_write(path: Path, error: OSError) -> OutputError:
    """The error for an output that the operating system refused."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutputError(
            f"{path}: no space left to write it", "free some space, or write elsewhere with -o"
        )
    reason = error.strerror or str(error)
    return OutputError(f"{path}: cannot be written ({reason})", "choose another place with -o")


def check_writable(path: Path) -> None:
    """Check before the work that a result file can be written at `path`.

    Raises:
        OutputError: it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        _check_regular(path)
    except OSError as error:
        raise cannot_write(path, error) from None
    if path.is_dir():
        raise OutputError(f"{path}: is a folder", "name a file")
    remove_abandoned(path)


@contextmanager
def folder_in_progress(final: Path) -> Iterator[Path]:
    """A temporary folder next to `final` that takes its name if the block succeeds, else is removed.

    An earlier build folder of the same name is replaced, and the new one keeps the user's files of it;
    a folder that trtopt did not make is not replaced.

    Raises:
        OutputError: `final` cannot be made, or is something else than a build folder of trtopt's.
        UsageError, BackendMissingError: nothing can be signed with the key that the environment names.
    """
    trusted_signer()  # a key that cannot be used is reported before the work, not after
    final = final.resolve()  # a link is followed, and the current folder has a name to take
    with locked_folder(final.parent):
        _check_replaceable(final)
    remove_abandoned(final)
    with _folder_beside(final, 0o777) as temporary:
        yield temporary
        _replace_folder(temporary, final)


def scratch_beside(final: Path) -> AbstractContextManager[Path]:
    """A temporary folder on the same disk as `final`, which need not exist; removed when the block ends.

    Only its owner may enter it. Such folders of killed runs are removed first.

    Raises:
        OutputError: it cannot be made.
    """
    return _folder_beside(final, 0o700)


@contextmanager
def _folder_beside(final: Path, mode: int) -> Iterator[Path]:
    remove_unfinished(final)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = temporary_folder(final, mode)
    except OSError as error:
        raise cannot_write(final, error) from None
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(handle)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder in the system's temporary folder; see `scratch_beside`."""
    with scratch_beside(Path(tempfile.gettempdir()) / "trtopt") as folder:
        inner = folder / "work"  # `folder` itself is locked: a build in it would wait for ever
        inner.mkdir()
        yield inner


def _check_replaceable(final: Path) -> None:
    if not final.exists() or is_build_folder(final):
        return
    if not final.is_dir() or any(final.iterdir()):
        raise OutputError(
            f"{final}: exists and is not a build folder of trtopt's",
            "choose another name with -o, or remove it",
        )


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


def own_files(folder: Path) -> set[str]:
    """The files of a build folder that trtopt made, by relative path; of a damaged one the certain ones."""
    own = {MANIFEST, SIGNATURE}
    try:
        manifest = read_manifest(folder, signed=False)
    except ArtifactError:
        return own
    for engine in manifest.engines:
        own |= {name for name in (engine.path, engine.log, engine.layers, engine.memory) if name}
    return own | manifest.files.keys()


@contextmanager
def lock(path: Path, wait_s: float | None = None) -> Iterator[None]:
    """Lock `path` + `.lock` against other processes.

    Raises:
        OutputError: another process has held it for ten minutes (or as long as `wait_s` says), or the folder
            cannot be written to.
    """
    with ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(path, _LOCK_TIMEOUT_S if wait_s is None else wait_s))
        except OSError as error:
            raise cannot_write(path, error) from None
        yield


def write_manifest(folder: Path, manifest: Manifest, files: Mapping[str, str] | None = None) -> Manifest:
    """Write `manifest.json`, signed if the environment has a key; returns what was written.

    `files` are the hashes that it lists, by default those of all files in the folder.
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


def sha256_of(*paths: Path) -> str:
    """The hash of a file; of several, one hash over their contents in order."""
    digest = hashlib.sha256()
    for path in paths:
        with open_regular(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


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
            raise ValueError("no regular file")  # a pipe would be waited for
        content = read_bounded(path, _MAX_MANIFEST_BYTES)
        if signed and (trusted := signer or trusted_signer()) is not None:
            signature = folder / SIGNATURE
            line = read_bounded(signature, _MAX_MANIFEST_BYTES) if signature.is_file() else None
            check_signature(str(folder), content, line, trusted)
        manifest = read_versioned(content, Manifest)
        check_manifest(manifest)
    except FileNotFoundError:
        raise ArtifactError(
            f"{folder}: has no {MANIFEST}",
            "give a folder that `trtopt build` made, an engine in one, or an ONNX file",
        ) from None
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path}: cannot be read as a manifest: {reason_of(error)}",
            "build again with this version of trtopt",
        ) from None
    return manifest


def plugin_libraries(engines: Iterable[EngineArtifact]) -> set[str]:
    """The paths of the libraries that engines need, as their manifest names them."""
    return {plugin.path for engine in engines for plugin in engine.plan.settings.plugins}


def is_library(name: str, library: str) -> bool:
    """Whether the user means that library: by its path or by a link to it."""
    return os.path.abspath(library) in (os.path.abspath(name), os.path.realpath(name))


def check_plugins(engines: Iterable[EngineArtifact], trust: Sequence[str], flag: str = "--trust") -> None:
    """Check that engines' plugin libraries may be loaded: an untrusted manifest can name any library.

    The user names them too; or the environment names a signer, who has signed the manifest.

    Raises:
        ArtifactError: a library is needed that is not in `trust`.
    """
    if trusted_signer() is not None:
        return
    for library in sorted(plugin_libraries(engines)):
        if not any(is_library(name, library) for name in trust):
            raise ArtifactError(
                f"{library}: a plugin library that the engines need; it is native code and was not loaded",
                f"if you trust it, name it: {flag} {library}",
            )


def read_plan(path: Path) -> BatchPlan:
    """Read the file that `trtopt plan` wrote.

    Raises:
        ArtifactError: there is none, it is cut short or edited beyond its schema, or of a newer trtopt.
    """
    try:
        plan = read_versioned(read_bounded(path, _MAX_MANIFEST_BYTES), BatchPlan)
        check_plan(plan)
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path}: cannot be read as a plan: {reason_of(error)}", "give a file that `trtopt plan -o` wrote"
        ) from None
    return plan


def read_verified(path: Path, sha256: str, vouching: str = "manifest") -> bytes:
    """A file's content, if its hash is the one in the `vouching` file: an engine is native code.

    Raises:
        ArtifactError: the file is missing, or is another one than was built.
    """
    again = "build again"
    if vouching == "plan":
        again = "plan again, or move the plan back: its paths to engines are relative to its folder"
    if not path.is_file():
        raise ArtifactError(f"{path}: cannot be read (no file of that name)", again)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})", again) from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ArtifactError(
            f"{path}: is not the file that the {vouching} vouches for (its SHA-256 differs); "
            "it was not loaded",
            "build again, or bring back the file that was built: an engine is native code",
        )
    return content
