"""A build folder: what it vouches for, the types that its engines run in, and its engines built again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from trtopt.builder.engine import tactics_file
from trtopt.builder.shapes import shapes_at
from trtopt.device.backends import open_builder
from trtopt.errors import ArtifactError, BuildError, ModelError, OutputError, UsageError
from trtopt.files.atomic import writing
from trtopt.files.bounded_reading import reading_as, sha256_of
from trtopt.files.manifests import (
    check_plugins,
    hashes_of,
    is_build_folder,
    read_manifest,
    read_verified,
    write_manifest,
)
from trtopt.files.outputs import folder_in_progress
from trtopt.inspect.graph import read_graph
from trtopt.inspect.inspector import read_inspector
from trtopt.inspect.layers import join
from trtopt.inspect.receipt import faults, receipt, share_of
from trtopt.onnxio.model_file import load
from trtopt.onnxio.model_info import read_onnx
from trtopt.records import (
    EngineArtifact,
    Manifest,
    OnnxArtifact,
    PrecisionReceipt,
)
from trtopt.records.build import FolderCheck
from trtopt.requests.build import VerifyRequest
from trtopt.targets import target_of
from trtopt.version import __version__
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.provenance import command_line, now
from trtopt.workflows.workbench import TIMING_CACHE_FILE, Workbench


def in_folder(onnx: OnnxArtifact) -> OnnxArtifact:
    """A model of a build folder as its manifest names it."""
    return msgspec.structs.replace(onnx, path=Path(onnx.path).name)


def stamp(manifest: Manifest) -> Manifest:
    """A manifest as made by this trtopt and this command now."""
    return msgspec.structs.replace(manifest, trtopt=__version__, created=now(), argv=command_line())


def as_it_is(folder: Path, engine: EngineArtifact) -> EngineArtifact:
    """The engine with the hash and size that its file has now, because the user trusts it by name."""
    file = folder / engine.path
    if not file.is_file():
        raise ArtifactError(
            f"{file}: is not there", "bring it back, or build the folder again: `trtopt build --locked`"
        )
    return msgspec.structs.replace(
        engine,
        sha256=sha256_of(file),
        size_bytes=file.stat().st_size,
        notes=(*engine.notes, "not as it was built: trusted by name"),
    )


def verified_graphs(folder: Path, manifest: Manifest) -> list[OnnxArtifact]:
    """The graphs that a folder's engines are made of, where they lie."""
    found = []
    for graph in (manifest.onnx, *manifest.graphs):
        path = folder / Path(graph.path).name
        if not os.path.exists(path):  # False for a damaged manifest's name, too
            raise ArtifactError(f"{path}: the model that the engines were built from is gone", "build again")
        try:
            there = read_onnx(path)
        except ModelError as error:
            raise ArtifactError(error.problem, "build again") from None
        if there.sha256 != graph.sha256:
            raise ArtifactError(f"{path}: is not the model that the engines were built from", "build again")
        found.append(there)
    return found


def receipts_of(folder: Path, manifest: Manifest) -> dict[str, PrecisionReceipt]:
    """A receipt by weights for each engine whose layers the builder described, by the engine's file."""
    described = [engine for engine in manifest.engines if engine.layers]
    if not described:
        return {}
    graphs = {graph.sha256: graph for graph in map(manifest.graph_of, described)}
    models = {key: load(folder / Path(graph.path).name).proto for key, graph in graphs.items()}
    found = {}
    for engine in described:
        name = str(engine.layers)
        with reading_as("an engine's layers", folder / name, "build again: the folder has lost it"):
            text = read_verified(folder / name, manifest.files.get(name, "")).decode()
        try:
            inspected = read_inspector(text, name)
        except ArtifactError:  # an engine whose layers have no detail tells no types
            continue
        model = models[manifest.graph_of(engine).sha256]
        graph = read_graph(model, shapes_at(manifest.onnx.inputs, engine.plan, engine.plan.batch.opt[0]))
        layers, _ = join(inspected, None, graph)
        found[engine.path] = receipt(layers, weakly_typed=target_of(engine.plan.backend).weakly_typed)
    return found


def check_receipts(
    receipts: Mapping[str, PrecisionReceipt], *, was_measured: bool = False
) -> tuple[str, ...]:
    """Fail if engines run in another precision than requested; or say so if measured to be best."""
    notes = []
    for name, found in receipts.items():
        if fallen := faults(found):
            worst = fallen[0]
            where = " + ".join(worst.nodes) or worst.layer
            notes.append(
                f"{name}: {share_of(fallen):.1%} of the weights run in a wider type than the graph requests, "
                f"first of all {where!r} in {worst.ran} instead of {worst.requested}"
            )
    if notes and not was_measured:
        raise BuildError(
            notes[0],
            "the folder is complete: accept it with --allow-fallback, or see `trtopt profile` and "
            "`trtopt lint` for the cause",
        )
    return tuple(notes)


def verify(request: VerifyRequest) -> FolderCheck:
    """Hash every file of a build folder again.

    Returns:
        The files that are missing, changed or not of the build; `is_whole` is whether none is.

    Example:
        >>> check = trtopt.verify("engines")
        >>> check.is_whole
        True
    """
    folder = Path(request.folder)
    return trust(folder, request.trust) if request.trust else check_folder(folder)


def check_folder(folder: Path) -> FolderCheck:
    """Hash every file of a build folder again."""
    return compare_with_manifest(folder, read_manifest(folder))


def compare_with_manifest(folder: Path, manifest: Manifest) -> FolderCheck:
    """The folder's files against the hashes in its manifest, an engine's own before the list of files."""
    expected = manifest.files | {one.path: one.sha256 for one in manifest.engines}
    found = hashes_of(folder)
    both = expected.keys() & found.keys()
    return FolderCheck(
        missing=tuple(sorted(expected.keys() - found.keys())),
        changed=tuple(sorted(name for name in both if expected[name] != found[name])),
        extra=tuple(sorted(found.keys() - expected.keys())),
        checked=len(expected),
    )


def trust(folder: Path, names: Sequence[str]) -> FolderCheck:
    """Enter the present hashes of engines into the manifest, as the user trusts them by name."""
    manifest = read_manifest(folder)
    known = {engine.path for engine in manifest.engines}
    if unknown := [name for name in names if name not in known]:
        raise UsageError(
            f"--trust {unknown[0]}: no engine of {folder}", f"name one of {', '.join(sorted(known))}"
        )
    engines = [as_it_is(folder, one) if one.path in names else one for one in manifest.engines]
    write_manifest(folder, msgspec.structs.replace(manifest, engines=tuple(engines)), files=manifest.files)
    return check_folder(folder)


def rebuild_locked(
    source: Path, target: Path, listener: Listener = SILENT, plugins: Sequence[str] = ()
) -> tuple[Manifest, list[str]]:
    """Build a folder's engines again, from its graphs, plans and timing cache; returns the differences.

    `plugins` are the libraries that may be loaded, see `check_plugins`.
    """
    manifest = read_manifest(source)
    if target.resolve() == source.resolve():
        raise UsageError(f"{target}: is the build itself", "give another folder with -o")
    if is_build_folder(target) and not _is_rebuild_of(manifest, target):
        raise OutputError(f"{target}: holds another build", "choose another name with -o, or remove it")
    check_plugins(manifest.engines, plugins, "--plugin")
    check = compare_with_manifest(source, manifest)
    engines_files = {name for engine in manifest.engines for name in engine.files}
    of_builds = {TIMING_CACHE_FILE, *(tactics_file(engine.plan) for engine in manifest.engines)}
    if lost := {*check.missing, *check.changed} - engines_files - of_builds:
        raise ArtifactError(
            f"{source}: {', '.join(sorted(lost))} missing or changed", "build it again with `trtopt build`"
        )
    with folder_in_progress(target) as folder:
        copy_without_engines(source, manifest, folder, of_builds)
        engines = _engines_again(source, manifest, folder, listener)
        made = stamp(msgspec.structs.replace(manifest, engines=engines))
        changes = differences(manifest, made)
        notes = [f"rebuilt: {change}" for change in changes]
        made = write_manifest(folder, msgspec.structs.replace(made, notes=(*manifest.notes, *notes)))
    return made, changes


def _is_rebuild_of(source: Manifest, target: Path) -> bool:
    try:
        there = read_manifest(target)
    except ArtifactError:
        return False
    is_rebuilt = "--locked" in there.argv and tactics_file(there.engines[0].plan) not in there.files
    return is_rebuilt and there.source_sha256 == source.source_sha256


def differences(before: Manifest, after: Manifest) -> list[str]:
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
    return [f"{what}: {then}, now {new}" for what, then, new in pairs if then != new]


def _engines_again(
    source: Path, manifest: Manifest, into: Path, listener: Listener
) -> tuple[EngineArtifact, ...]:
    builder = open_builder(manifest.engines[0].plan.backend.name)
    workbench = Workbench(builder=builder, listener=listener).with_cache_in(into)
    graphs = verified_graphs(source, manifest)
    cache, listed = source / TIMING_CACHE_FILE, manifest.files.get(TIMING_CACHE_FILE)
    if workbench.cache is not None and cache.is_file() and listed in (None, sha256_of(cache)):
        _copy(cache, workbench.cache)
    plans = [engine.plan for engine in manifest.engines]
    return workbench.build_again(graphs, plans, into)


def copy_without_engines(source: Path, manifest: Manifest, into: Path, leave: Collection[str]) -> None:
    """Copy what is no engine's: the models with their weights, traces, calibration tables."""
    built = {name for engine in manifest.engines for name in engine.files}
    for name in manifest.files.keys() - built - {*leave}:
        _copy(source / name, into / name)


def _copy(source: Path, target: Path) -> None:
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
