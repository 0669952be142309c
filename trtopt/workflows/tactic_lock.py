"""Locks of tactics: who can have one, what a build is held to, and the file of what its layers got."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from trtopt.builder.engine import tactics_file
from trtopt.device.api import EngineBuilder
from trtopt.errors import ArtifactError, OutputError, UsageError
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.files.outputs import check_output, json_kind
from trtopt.inspect.inspector import EngineLayer, read_inspector
from trtopt.inspect.layers import OPAQUE_KINDS
from trtopt.recipe import Recipe
from trtopt.records import BuildPlan, EngineArtifact, LayerTactic, TacticLock, read_versioned
from trtopt.targets import target_of
from trtopt.workflows.cache_folder import NO_CACHE

KIND = json_kind("trtopt.lock")
_NEW = "write a new lock with --lock, or omit --locked"
_EXACT = {"float32", "float16", "bfloat16", "int32", "int64", "bool"}
"""Types that layers convert to one another without a scale."""


def open_lock(
    lock: str | Path | None,
    locked: str | Path | None,
    recipe: Recipe,
    builder: EngineBuilder,
    plans: Sequence[BuildPlan],
) -> TacticLock | None:
    """What a build of these plans is held to, or a lock without tactics if it only writes one; None: neither.

    UsageError: the backend or another option admits no lock. ArtifactError: `locked` is none for here.
    OutputError: `lock` cannot be written, or is there.
    """
    if lock is None and locked is None:
        return None
    flag, backend = "--lock" if locked is None else "--locked", builder.backend
    if not target_of(backend).algorithm_selector:
        raise UsageError(
            f"{flag}: {backend} has no selector of tactics",
            f"omit {flag}; TensorRT 10.8 and newer repeat tactics by --timing-cache FILE, and --reproducible "
            "from the second build on",
        )
    if recipe.timing_cache not in (None, NO_CACHE):
        raise UsageError(f"{flag} and --timing-cache would both decide the tactics", "omit one of them")
    if recipe.selects_precision:
        raise UsageError(
            f"{flag}: --precision {recipe.precision} builds several engines and keeps the fastest",
            "add --no-verdict, or build the model that `trtopt quantize` wrote",
        )
    if lock is not None:
        check_output(Path(lock), KIND)
        if Path(lock).is_file() and Path(lock).stat().st_size:  # nothing else knows its tactics
            raise OutputError(
                f"{lock}: is there already, and is not replaced",
                "build with its tactics by --locked, or remove it, or name another file",
            )
    if locked is None:
        return TacticLock(backend=backend, device=builder.device, engines={plan.label: () for plan in plans})
    with reading_as("a lock of tactics", Path(locked), "give a file that `trtopt build --lock` wrote"):
        found = read_versioned(read_bounded(Path(locked)), TacticLock)
    for of, now in ((found.backend, backend), (found.device.name, builder.device.name)):
        if of != now:
            raise ArtifactError(f"{locked}: is of {of}, and its tactics mean nothing on {now}", _NEW)
    for plan in plans:
        if not found.engines.get(plan.label):
            raise ArtifactError(f"{locked}: has no tactics of {plan.label}", _NEW)
    return found


def lock_of(folder: Path, engines: Sequence[EngineArtifact]) -> TacticLock:
    """One lock of all engines that were built with one into a folder."""
    layers: dict[str, tuple[LayerTactic, ...]] = {}
    for engine in engines:
        layers |= read_versioned(read_bounded(folder / tactics_file(engine.plan)), TacticLock).engines
    return TacticLock(backend=engines[0].plan.backend, device=engines[0].device, engines=layers)


def lock_alarms(folder: Path, engines: Sequence[EngineArtifact], lock: TacticLock) -> Iterator[str]:
    """What a lock of these engines does not reach, by the inspector."""
    for engine in engines:
        text = read_bounded(folder / engine.layers) if engine.layers else b""
        asked = {one.layer for one in lock.engines[engine.plan.label]}
        try:
            layers = read_inspector(text.decode(errors="replace"))
        except ArtifactError as error:
            yield f"{engine.plan.label}: what the lock does not reach is not known: {error.problem}"
            continue
        for name in (layer.name for layer in layers if _is_beyond(layer, asked)):
            where = f"{engine.plan.label}: {name}"
            yield f"{where}: TensorRT chooses by itself, whatever the lock: outputs may differ"


def _is_beyond(layer: EngineLayer, asked: Collection[str]) -> bool:
    """Whether a layer chooses inside, or was never offered and its tactic may decide values.

    Reformats, which 8.6 never offers, copy or round to the nearest, except where they apply a scale.
    """
    if layer.kind == "Reformat":
        types = {one.dtype for one in (*layer.inputs, *layer.outputs)}
        return layer.name not in asked and len(types) > 1 and not types <= _EXACT
    return layer.kind in OPAQUE_KINDS or (layer.name not in asked and bool(layer.tactic.strip("0x")))
