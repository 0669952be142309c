"""A chain of engines from one plan: the graph is cut, every segment built, and all put into one file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trtopt.device.api import ProgressSink
from trtopt.device.building import BuiltEngine, EngineBuilder, LogSink, joined_layers, name_in_segment
from trtopt.errors import BuildError, UsageError
from trtopt.files.atomic import scratch_folder
from trtopt.files.chain_file import Chain, pack_chain
from trtopt.onnxio import model_file
from trtopt.onnxio.segments import GraphSegment, segments_of
from trtopt.records import AllocationEvent, BuildPlan, MemoryPass, Segment, ShapeRange, TensorSpec
from trtopt.records.tensors import IMAGE_RANK
from trtopt.targets import ONNXRUNTIME, target_of


@dataclass(frozen=True)
class BuiltChain:
    """An engine, or a chain's file as a builder would return it and what is in it."""

    built: BuiltEngine
    segments: tuple[Segment, ...] = ()


def build_chain(
    builder: EngineBuilder,
    onnx: Path,
    types: Sequence[str],
    plan: BuildPlan,
    *,
    timing_cache: bytes | None,
    progress: ProgressSink,
    log: LogSink,
) -> BuiltChain:
    """Build every segment of a plan with splits, each with the timings of those before it."""
    on_gpu = builder.backend.name != ONNXRUNTIME
    shapes = {name: given.opt for name, given in plan.shapes.items()}
    model = model_file.load(onnx)
    known = target_of(builder.backend).io_formats
    found = segments_of(model, plan.splits, shapes, aligned=on_gpu)
    made: list[BuiltEngine] = []
    plans = [_plan_of(segment, plan) for segment in found]
    for segment, own in zip(found, plans, strict=True):
        _check_formats(segment, own, known)
    with scratch_folder() as scratch:
        for number, (segment, own) in enumerate(zip(found, plans, strict=True), 1):
            file = scratch / f"segment{number}.onnx"
            model_file.save(segment.model, file)
            one = builder.build(
                file,
                types,
                own,
                timing_cache=timing_cache,
                progress=_within(progress, number, len(found)),
                log=log,
            )
            made.append(one)
            timing_cache = one.timing_cache or timing_cache
    segments = tuple(
        Segment(
            batch=own.batch.opt[0],
            repeats=segment.parts,
            inputs=_typed(segment.inputs, one.inputs),
            outputs=_typed(segment.outputs, one.outputs),
            layouts=own.io_layouts,
            size_bytes=len(one.engine),
            sha256=hashlib.sha256(one.engine).hexdigest(),
        )
        for segment, own, one in zip(found, plans, made, strict=True)
    )
    outputs = [value.name for value in model.proto.graph.output]
    return BuiltChain(_joined(made, segments, plan, outputs), segments)


def _plan_of(segment: GraphSegment, plan: BuildPlan) -> BuildPlan:
    """One segment's plan: of one run's shapes, with the formats of what it exchanges."""
    layouts = dict(plan.io_layouts)
    for split in plan.splits:
        layouts |= split.layouts
    names = {spec.name for spec in (*segment.inputs, *segment.outputs)}
    batch = (plan.batch.opt[0] // segment.parts,)
    shapes = {}
    for spec in segment.inputs:
        shape = tuple(int(axis) for axis in spec.shape)
        shapes[spec.name] = ShapeRange(min=shape, opt=shape, max=shape)
    return msgspec.structs.replace(
        plan,
        batch=ShapeRange(min=batch, opt=batch, max=batch),
        shapes=shapes,
        io_layouts={name: layout for name, layout in layouts.items() if name in names},
        splits=(),
    )


def _check_formats(segment: GraphSegment, plan: BuildPlan, known: Mapping[str, Sequence[str]]) -> None:
    """Refuse formats that the backend does not have for a tensor's type, or for one that is no image."""
    for spec in (*segment.inputs, *segment.outputs):
        layout = plan.io_layouts.get(spec.name)
        if layout is None:
            continue
        if len(spec.shape) != IMAGE_RANK:
            raise UsageError(
                f"--split {spec.name}={layout}: needs a tensor of rank {IMAGE_RANK}, this one has rank "
                f"{len(spec.shape)}",
                "omit the layout",
            )
        if layout not in known.get(spec.dtype, ()):
            offered = ", ".join(known.get(spec.dtype, ()))
            raise UsageError(
                f"--split {spec.name}={layout}: {plan.backend} has no {spec.dtype} in {layout}",
                f"choose among {offered}, or omit the layout" if offered else "omit the layout",
            )


def _typed(known: Sequence[TensorSpec], built: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The segment's tensors in the engine's types."""
    by_name = {spec.name: spec for spec in built}
    if missing := [spec.name for spec in known if spec.name not in by_name]:
        raise BuildError(
            f"--split: the builder dropped {', '.join(map(repr, missing))} of a segment", "cut elsewhere"
        )
    return tuple(msgspec.structs.replace(spec, dtype=by_name[spec.name].dtype) for spec in known)


def _within(progress: ProgressSink, number: int, count: int) -> ProgressSink:
    def report(phase: str, fraction: float | None) -> None:
        share = None if fraction is None else (number - 1 + fraction) / count
        progress(f"{phase}, segment {number} of {count}", share)

    return report


def _joined(
    made: Sequence[BuiltEngine], segments: Sequence[Segment], plan: BuildPlan, outputs: Sequence[str]
) -> BuiltEngine:
    """All of them as one engine; settings in which segments differ are listed for each."""
    whole = {
        spec.name: msgspec.structs.replace(spec, shape=(plan.batch.opt[0], *spec.shape[1:]))
        for segment in segments
        for spec in (*segment.inputs, *segment.outputs)
    }
    chain = Chain(
        inputs=tuple(whole[name] for name in plan.shapes if name in whole),
        outputs=tuple(whole[name] for name in outputs),
        segments=tuple(segments),
    )
    hits = [one.timing_cache_hits for one in made if one.timing_cache_hits is not None]
    return BuiltEngine(
        engine=pack_chain(chain, [one.engine for one in made]),
        inputs=chain.inputs,
        outputs=chain.outputs,
        config=_settings([one.config for one in made]),
        timing_cache=made[-1].timing_cache,
        timing_cache_hits=sum(hits) if hits else None,
        inspector=joined_layers([one.inspector for one in made]),
        memory=_memory([one.memory for one in made]),
    )


def _settings(configs: Sequence[Mapping[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, config in enumerate(configs, 1):
        for name, value in config.items():
            is_common = all(other.get(name) == value for other in configs)
            found[name if is_common else name_in_segment(name, number)] = value
    return found


def _memory(passes: Sequence[MemoryPass | None]) -> MemoryPass | None:
    """The builders' allocations one after the other; None where they were not followed."""
    events: list[AllocationEvent] = []
    for one in passes:
        if one is None:
            return None
        start_ms = events[-1].at_ms if events else 0.0
        events += [msgspec.structs.replace(event, at_ms=start_ms + event.at_ms) for event in one.events]
    return msgspec.structs.replace(passes[-1], events=tuple(events)) if passes[-1] is not None else None
