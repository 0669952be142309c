"""A build folder against its manifest, and built again from it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from trtopt.device.backends import open_builder
from trtopt.errors import ArtifactError, OutputError, UsageError
from trtopt.files.atomic import cannot_write
from trtopt.files.bounded_reading import sha256_of
from trtopt.files.manifests import check_plugins, hashes_of, is_build_folder, read_manifest, write_manifest
from trtopt.files.outputs import folder_in_progress
from trtopt.records import EngineArtifact, Manifest
from trtopt.records.build import FolderCheck, RebuildDifference
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.workbench import (
    TIMING_CACHE_FILE,
    Workbench,
    as_it_is,
    stamp,
    verified_graphs,
)


def check_folder(folder: Path) -> FolderCheck:
    """Hash every file of a build folder again."""
    return compared_files(folder, read_manifest(folder))


def compared_files(folder: Path, manifest: Manifest) -> FolderCheck:
    """The folder's files against the hashes in its manifest."""
    expected, found = _expected(manifest), hashes_of(folder)
    both = expected.keys() & found.keys()
    return FolderCheck(
        missing=tuple(sorted(expected.keys() - found.keys())),
        changed=tuple(sorted(name for name in both if expected[name] != found[name])),
        extra=tuple(sorted(found.keys() - expected.keys())),
        checked=len(expected),
    )


def _expected(manifest: Manifest) -> dict[str, str]:
    """Builds of before every file's hash was kept name their engines' at least."""
    return manifest.files or {engine.path: engine.sha256 for engine in manifest.engines}


def trust(folder: Path, names: Sequence[str]) -> FolderCheck:
    """Enter the present hashes of engines into the manifest, as the user trusts them by name."""
    manifest = read_manifest(folder)
    known = {engine.path for engine in manifest.engines}
    if unknown := [name for name in names if name not in known]:
        raise UsageError(
            f"--trust {unknown[0]}: no engine of {folder}", f"name one of {', '.join(sorted(known))}"
        )
    engines = [as_it_is(folder, one) if one.path in names else one for one in manifest.engines]
    write_manifest(
        folder, msgspec.structs.replace(manifest, engines=tuple(engines)), files=_expected(manifest)
    )
    return check_folder(folder)


def rebuilt_name(source: Path) -> Path:
    """The default folder of a rebuild: the same name with `.rebuilt`, in the current folder."""
    return Path(f"{source.resolve().name}.rebuilt")


def rebuild_locked(
    source: Path, output: Path | None = None, listener: Listener = SILENT, plugins: Sequence[str] = ()
) -> tuple[Manifest, tuple[RebuildDifference, ...]]:
    """Build a folder's engines again, from its graphs, plans and timing cache; returns the differences.

    Args:
        source: a build folder.
        output: the folder to make; by default `rebuilt_name`.
        listener: receives progress and notes.
        plugins: the libraries that may be loaded; see `check_plugins`.
    """
    manifest = read_manifest(source)
    target = output or rebuilt_name(source)
    if target.resolve() == source.resolve():
        raise UsageError(f"{target}: is the build itself", "give another folder with -o")
    if is_build_folder(target) and not _is_rebuild_of(manifest, target):
        raise OutputError(f"{target}: holds another build", "choose another name with -o, or remove it")
    check_plugins(manifest.engines, plugins, "--plugin")
    if not manifest.files:
        raise ArtifactError(
            f"{source}: built before trtopt kept every file's hash", "build it again with `trtopt build`"
        )
    check = compared_files(source, manifest)
    engines_files = {name for engine in manifest.engines for name in engine.files}
    if lost := {*check.missing, *check.changed} - engines_files - {TIMING_CACHE_FILE}:
        raise ArtifactError(
            f"{source}: {', '.join(sorted(lost))} missing or changed", "build it again with `trtopt build`"
        )
    with folder_in_progress(target) as folder:
        _copy_rest(source, manifest, folder)
        engines = _engines_again(source, manifest, folder, listener)
        made = stamp(msgspec.structs.replace(manifest, engines=engines))
        changes = tuple(differences(manifest, made))
        notes = [f"rebuilt: {change.what}: {change.before}, now {change.after}" for change in changes]
        made = write_manifest(folder, msgspec.structs.replace(made, notes=(*manifest.notes, *notes)))
    return made, changes


def _is_rebuild_of(source: Manifest, target: Path) -> bool:
    try:
        there = read_manifest(target)
    except ArtifactError:
        return False
    return "--locked" in there.argv and there.source_sha256 == source.source_sha256


def differences(before: Manifest, after: Manifest) -> list[RebuildDifference]:
    """What differs between two builds of the same plans: versions, machine, settings, hashes; pure."""
    pairs = [("trtopt", before.trtopt, after.trtopt)]
    for old, new in zip(before.engines, after.engines, strict=True):
        name = old.path
        pairs.append((f"{name}: builder", str(old.plan.backend), str(new.plan.backend)))
        for part in ("name", "compute_capability", "driver", "cuda"):
            then, now_ = getattr(old.device, part), getattr(new.device, part)
            pairs.append((f"{name}: device {part}", str(then), str(now_)))
        for setting in sorted({*old.builder_config, *new.builder_config}):
            then, now_ = old.builder_config.get(setting, "–"), new.builder_config.get(setting, "–")
            pairs.append((f"{name}: {setting}", then, now_))
        pairs.append((f"{name}: timing cache", old.timing_cache_out or "–", new.timing_cache_in or "–"))
        pairs.append((f"{name}: SHA-256", old.sha256, new.sha256))
    return [RebuildDifference(what=what, before=then, after=new) for what, then, new in pairs if then != new]


def _engines_again(
    source: Path, manifest: Manifest, into: Path, listener: Listener
) -> tuple[EngineArtifact, ...]:
    builder = open_builder(manifest.engines[0].plan.backend.name)
    workbench = Workbench(builder=builder, listener=listener).with_cache_in(into)
    graphs = verified_graphs(source, manifest)
    if workbench.cache is not None and _is_as_built(source, manifest, TIMING_CACHE_FILE):
        _copy(source / TIMING_CACHE_FILE, workbench.cache)
    plans = [engine.plan for engine in manifest.engines]
    return workbench.build_again(graphs, plans, into)


def _is_as_built(folder: Path, manifest: Manifest, name: str) -> bool:
    file, listed = folder / name, manifest.files.get(name)
    return file.is_file() and listed in (None, sha256_of(file))


def _copy_rest(source: Path, manifest: Manifest, folder: Path) -> None:
    """Everything that is no engine's: the models with their weights, traces, calibration tables."""
    engines = {name for engine in manifest.engines for name in engine.files}
    for name in _expected(manifest).keys() - engines - {TIMING_CACHE_FILE}:
        _copy(source / name, folder / name)


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise cannot_write(target, error) from None
