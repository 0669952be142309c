"""An external engine, without a manifest: trusted by the user; its shapes are read from the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtopt.builder.shapes import over_all
from trtopt.errors import ArtifactError
from trtopt.executors.local import run_job
from trtopt.files.bounded_reading import sha256_of
from trtopt.files.manifests import MANIFEST, read_manifest
from trtopt.measure.describe_engine import Described, DescribeJob
from trtopt.records import BuildPlan, BuildSettings, EngineArtifact, Profile, ShapeRange, TensorSpec


def is_external(path: Path, trust: Sequence[str]) -> bool:
    """Whether `trust` names the file `path`, by its own name or by path, and no manifest describes it.

    An ONNX file is a model, which is built, and needs no trust.
    """
    if path.suffix == ".onnx" or not path.is_file():
        return False
    if path.name not in trust and path.resolve() not in {Path(name).resolve() for name in trust}:
        return False
    beside = read_manifest(path.parent).engines if (path.parent / MANIFEST).is_file() else ()
    return not any(engine.path == path.name for engine in beside)


def external_engine(path: Path, backend: str) -> EngineArtifact:
    """The engine as a worker process that loads it with `backend` finds it."""
    sha256 = sha256_of(path)
    job = DescribeJob(path=str(path.absolute()), sha256=sha256, backend=backend)
    described = run_job(job, Described)
    return EngineArtifact(
        path=path.name,
        sha256=sha256,
        size_bytes=path.stat().st_size,
        plan=plan_of(path, described),
        inputs=described.inputs,
        outputs=described.outputs,
        device=described.device,
        build_seconds=0.0,
        builder_config={},
        log="",
        warnings=0,
        notes=("no manifest describes it: trusted by name",),
    )


def plan_of(path: Path, described: Described) -> BuildPlan:
    """The plan of the engine at `path`, from its own shapes. Its model and settings are unknown."""
    ranges = described.profiles or ({spec.name: _only_shape(path, spec) for spec in described.inputs},)
    profiles = tuple(
        Profile(batch=_batch(described.inputs, shapes), shapes=dict(shapes)) for shapes in ranges
    )
    whole = over_all(profiles)
    return BuildPlan(
        onnx_sha256="",
        batch=whole.batch,
        shapes=whole.shapes,
        settings=BuildSettings(),
        backend=described.backend,
        multi_profile=profiles if len(profiles) > 1 else (),
    )


def _only_shape(path: Path, spec: TensorSpec) -> ShapeRange:
    shape = tuple(axis for axis in spec.shape if isinstance(axis, int))
    if len(shape) < len(spec.shape):
        raise ArtifactError(
            f"{path}: leaves an axis of input {spec.name!r} open, and its sizes are unknown",
            "measure it in the folder that `trtopt build` made",
        )
    return ShapeRange(min=shape, opt=shape, max=shape)


def _batch(inputs: Sequence[TensorSpec], shapes: dict[str, ShapeRange]) -> ShapeRange:
    """Axis 0 of the first input that leaves it open; of the first that has axes, where all are fixed."""
    with_axes = [spec for spec in inputs if spec.shape]
    leading = [spec for spec in with_axes if isinstance(spec.shape[0], str)] or with_axes
    if not leading:
        return ShapeRange(min=(1,), opt=(1,), max=(1,))
    own = shapes[leading[0].name]
    return ShapeRange(min=own.min[:1], opt=own.opt[:1], max=own.max[:1])
