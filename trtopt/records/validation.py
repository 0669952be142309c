"""Validation of files beyond their schemas."""

from __future__ import annotations

import os
from collections.abc import Iterable
from numbers import Integral, Real

from trtopt.records.building import EngineArtifact, Manifest, TensorSpec
from trtopt.records.inspecting import ProfileReport
from trtopt.records.planning import BatchPlan
from trtopt.records.profiles import MAX_PROFILES, Profile, ShapeRange
from trtopt.records.serving import BatchPolicy

_MAX_NAME_BYTES = 255


def check_manifest(manifest: Manifest) -> None:
    """Engines are listed, have valid shapes, and all files lie in the build folder.

    Raises:
        ValueError: says what does not.
    """
    if not manifest.engines:
        raise ValueError("it lists no engines")
    if manifest.rewrite is not None:
        _check_name(manifest.rewrite.trace)
    for name in manifest.files:  # weights may lie in subfolders
        for part in name.split("/"):
            _check_name(part)
    for engine in manifest.engines:
        _check_engine(engine)
        _check_shapes(engine, manifest.onnx.inputs)


def check_plan(plan: BatchPlan) -> None:
    """Engines are listed and have valid shapes, also to pad requests to; workers and policy are valid.

    The engines' files may lie anywhere: hashes identify them.

    Raises:
        ValueError: says what does not.
    """
    if not plan.engines:
        raise ValueError("it lists no engines")
    if plan.workers < 1:
        raise ValueError(f"workers is {plan.workers}, one at least is needed")
    check_policy(plan.policy)
    for planned in plan.engines:
        _check_shapes(planned.artifact, planned.artifact.inputs)
    if not plan.buckets:
        raise ValueError("it has no shapes that requests are padded to")
    for length, shapes in plan.buckets.items():
        if lost := {spec.name for spec in plan.engines[0].artifact.inputs} - {*shapes}:
            raise ValueError(f"length {length} has no shape for input {min(lost)[:60]!r}")


def check_policy(policy: BatchPolicy) -> None:
    """Batches hold at least one request, at least one may wait, and the delay is not negative.

    Raises:
        ValueError: says what is not so.
    """
    for name in ("max_batch", "max_waiting"):
        value = getattr(policy, name)  # the types of a policy made by a program are unchecked
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} is {value!r}, a whole number from 1 on is needed")
    if not isinstance(policy.max_delay_ms, Real) or not policy.max_delay_ms >= 0:
        raise ValueError(f"max_delay_ms is {policy.max_delay_ms!r}, a number from 0 on is needed")


def check_profile(report: ProfileReport) -> None:
    """Parts fit together: a curve's times and values, nodes and operators, names and layers.

    Peaks are positive.

    Raises:
        ValueError: something does not.
    """
    if report.peaks is not None:
        peaks = (report.peaks.bandwidth, *report.peaks.flops.values())
        if min(peak.value for peak in peaks) <= 0:
            raise ValueError(f"the peaks of {report.peaks.device[:60]!r} are not positive")
    for engine in report.engines:
        for layer in engine.layers:
            if len(layer.onnx_nodes) != len(layer.onnx_ops):
                raise ValueError(f"batch {engine.batch}: {layer.name[:60]!r} has not one operator per node")
        if unknown := {*engine.furthest} - {layer.name for layer in engine.layers}:
            raise ValueError(f"batch {engine.batch}: has no layer {min(unknown)[:60]!r}")
        if engine.memory is not None and len(engine.memory.at_ms) != len(engine.memory.live_bytes):
            raise ValueError(f"batch {engine.batch}: its columns of live bytes are of unlike length")


def _check_engine(engine: EngineArtifact) -> None:
    if engine.size_bytes < 0:
        raise ValueError(f"{engine.path} has {engine.size_bytes} bytes")
    for name in (engine.path, engine.log, engine.layers, engine.memory):
        if name is not None:
            _check_name(name)


def _check_shapes(engine: EngineArtifact, inputs: Iterable[TensorSpec]) -> None:
    if len(engine.plan.multi_profile) > MAX_PROFILES:
        raise ValueError(f"{engine.path} has {len(engine.plan.multi_profile)} optimisation profiles")
    for profile in _profiles(engine):
        if len(profile.batch.min) != 1:
            raise ValueError(f"{engine.path} is of {len(profile.batch.min)} batch sizes")
        for shapes in (profile.batch, *profile.shapes.values()):
            if not _is_range(shapes):
                raise ValueError(
                    f"{engine.path} has no range of shapes but {shapes.min}, {shapes.opt}, {shapes.max}"
                )
        for spec in inputs:
            if spec.name not in profile.shapes:
                raise ValueError(f"{engine.path} has no shape for input {spec.name[:60]!r}")


def _profiles(engine: EngineArtifact) -> tuple[Profile, ...]:
    """The range over all profiles, and each profile."""
    plan = engine.plan
    return (Profile(batch=plan.batch, shapes=plan.shapes), *plan.multi_profile)


def _is_range(shapes: ShapeRange) -> bool:
    if not len(shapes.min) == len(shapes.opt) == len(shapes.max):
        return False
    axes = zip(shapes.min, shapes.opt, shapes.max, strict=True)
    return all(0 <= low <= best <= high for low, best, high in axes)


def _check_name(name: str) -> None:
    """A manifest may be untrusted: a path outside the folder is refused."""
    is_plain = name not in ("", ".", "..") and not set(name) & {"/", "\0"}
    if not is_plain or len(os.fsencode(name)) > _MAX_NAME_BYTES:
        raise ValueError(f"{name[:60]!r} is not the name of a file in the build folder")
