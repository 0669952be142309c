"""Locks of tactics: who can have one, what a build is held to, and the file of what its layers got."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from trtopt.builder.engine import tactics_file
from trtopt.device.api import EngineBuilder
from trtopt.errors import ArtifactError, UsageError
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.files.outputs import check_output, json_kind, write_output
from trtopt.inspect.inspector import read_inspector
from trtopt.inspect.layers import OPAQUE_KINDS
from trtopt.recipe import Recipe
from trtopt.records import BuildPlan, EngineArtifact, EngineTactics, TacticLock, read_versioned, to_json
from trtopt.targets import ONNXRUNTIME, RTX
from trtopt.workflows.cache_folder import NO_CACHE

_KIND = json_kind("trtopt.lock")
_NEW = "write a new lock with --lock, or omit --locked"
_HAVE_NONE = {
    RTX: "chooses kernels where an engine is loaded, not where it is built",
    ONNXRUNTIME: "has no tactics",
}


def open_lock(
    lock: str | Path | None, locked: str | Path | None, recipe: Recipe, builder: EngineBuilder
) -> TacticLock | None:
    """What a build is held to, or a lock of no engines if it only writes one; None: neither.

    UsageError: the backend or another option admits no lock. ArtifactError: `locked` is none for here.
    """
    if lock is None and locked is None:
        return None
    flag, backend = "--lock" if locked is None else "--locked", builder.backend
    if (why := _HAVE_NONE.get(backend.name)) is not None:
        raise UsageError(f"{flag}: {backend} {why}", f"omit {flag}, or give --backend tensorrt")
    if recipe.timing_cache not in (None, NO_CACHE):
        raise UsageError(f"{flag} and --timing-cache would both decide the tactics", "omit one of them")
    if recipe.precision in ("int8", "fp8", "int4", "best") and recipe.verdict:
        raise UsageError(
            f"{flag}: --precision {recipe.precision} builds several engines and keeps the fastest",
            "add --no-verdict, or build the model that `trtopt quantize` wrote",
        )
    if lock is not None:
        check_output(Path(lock), _KIND)
    if locked is None:
        return TacticLock(device=builder.device, engines=())
    with reading_as("a lock of tactics", Path(locked), "give a file that `trtopt build --lock` wrote"):
        found = read_versioned(read_bounded(Path(locked)), TacticLock)
        if not found.engines:
            raise ValueError("it has no engines")
    gpus = found.device.name, builder.device.name
    for of, now in ((found.engines[0].plan.backend, backend), gpus):
        if of != now:
            raise ArtifactError(f"{locked}: is of {of}, and its tactics mean nothing on {now}", _NEW)
    return found


def tactics_for(plan: BuildPlan, lock: TacticLock | None) -> EngineTactics | None:
    """The tactics of a plan, as `BuildInput` has them; an ArtifactError says what the lock has otherwise."""
    if lock is None or not lock.engines:
        return None if lock is None else EngineTactics(plan=plan)
    own = {one.plan.label: one for one in lock.engines}.get(plan.label)
    if own is None:
        raise ArtifactError(f"--locked: the lock has no {plan.label}", _NEW)
    if changed := [name for name in plan.__struct_fields__ if getattr(plan, name) != getattr(own.plan, name)]:
        what = "graph: of another model, or rewritten or cast otherwise"
        what = what if "onnx_sha256" in changed else ", ".join(changed)
        raise ArtifactError(f"--locked: in the lock {plan.label} has another {what}", _NEW)
    return own


def write_lock(path: str | Path, folder: Path, engines: Sequence[EngineArtifact]) -> None:
    """One lock of all engines of a folder."""
    device, own = engines[0].device, tuple(_own(folder, engine) for engine in engines)
    write_output(Path(path), to_json(TacticLock(device=device, engines=own)), _KIND)


def _own(folder: Path, engine: EngineArtifact) -> EngineTactics:
    return read_versioned(read_bounded(folder / tactics_file(engine.plan)), TacticLock).engines[0]


def lock_alarms(folder: Path, engines: Iterable[EngineArtifact]) -> Iterator[str]:
    """What locks do not reach, by the inspector: layers that choose inside, or are not offered."""
    for engine in engines:
        own, text = _own(folder, engine), read_bounded(folder / engine.layers) if engine.layers else b""
        asked = {one.layer for one in own.layers}
        try:
            layers = read_inspector(text.decode(errors="replace")).layers
        except ArtifactError as error:
            yield f"{engine.plan.label}: what the lock does not reach is not known: {error.problem}"
            continue
        for layer in layers:
            is_beyond = own.timing_cache is None and layer.name not in asked and layer.tactic.strip("0x")
            if layer.kind in OPAQUE_KINDS or is_beyond:  # caches have keys, not layers
                where = f"{engine.plan.label}: {layer.name}"
                yield f"{where}: TensorRT chooses by itself, whatever the lock: outputs may differ"
