"""Records of builds: from the plan of one engine to the manifest of a folder, and timing caches."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import msgspec

from trtopt.records.base import Record, Result
from trtopt.records.machine import Backend, DeviceInfo
from trtopt.records.precision import PrecisionVerdict
from trtopt.records.tensors import MAX_PROFILES, Profile, ShapeRange, Span, TensorSpec, TypedTensor, spans_of

_MAX_NAME_BYTES = 255


class Plugin(Record, frozen=True, kw_only=True):
    """A plugin library that was requested by name. It is native code."""

    path: str
    sha256: str


class RecipeSettings(Record, frozen=True, kw_only=True):
    """What a recipe sets of a builder and a manifest records alike; None leaves the builder's own default."""

    opt_level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    reproducible: bool = False
    """Take every tactic from the timing cache; one that it does not have is an error."""
    aux_streams: int | None = None
    avg_timing: int | None = None
    """None: 8, where TensorRT's own default is 1."""
    tiling: str | None = None
    build_route: str | None = None
    graph_optimization: str | None = None
    """This and those below are ONNX Runtime's."""
    intra_op_threads: int | None = None
    execution_mode: str | None = None


class BuildSettings(RecipeSettings, frozen=True, kw_only=True):
    """All settings as a manifest records them."""

    workspace_bytes: int | None = None
    compute_capabilities: tuple[str, ...] = ()
    plugins: tuple[Plugin, ...] = ()
    l2_limit_bytes: int | None = None


# ── engines ─────────────────────────────────────────────────────────────────────────────────────────────


class BuildPlan(Record, frozen=True, kw_only=True):
    """One engine to build: its ONNX file (by hash), shapes, settings and backend."""

    onnx_sha256: str
    batch: ShapeRange
    """Batch sizes as one-element shapes: `min == max` for an engine of one batch size."""
    shapes: dict[str, ShapeRange]
    """Every input's range, batch included."""
    settings: BuildSettings
    backend: Backend
    multi_profile: tuple[Profile, ...] = ()
    """The optimisation profiles of an engine that has more than one, in TensorRT's order. `batch` and
    `shapes` then reach over all of them, tuned for what the one with the largest batch is."""
    io_layouts: dict[str, str] = {}  # noqa: RUF012  (msgspec copies mutable defaults)
    """The vectorised formats of inputs and outputs; the others are linear."""

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Its optimisation profiles, one at least."""
        return self.multi_profile or (Profile(batch=self.batch, shapes=self.shapes),)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The batch sizes that it admits, and which profile runs them."""
        return spans_of([profile.batch for profile in self.profiles])

    def span_of(self, batch: int) -> Span | None:
        """Where a batch size lies; None where the engine does not admit it."""
        return next((span for span in self.spans if span.low <= batch <= span.high), None)

    @property
    def key(self) -> str:
        """A hash of all that determines the engine except the machine: the name of a reusable result."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    @property
    def label(self) -> str:
        """`batch8`, `batch1-8-32` for a range, `batch1+2-8-32` for profiles: for file names and tables."""
        return "batch" + "+".join(_sizes(profile.batch) for profile in self.profiles)


def _sizes(batch: ShapeRange) -> str:
    low, best, high = batch.min[0], batch.opt[0], batch.max[0]
    return f"{low}" if low == high else f"{low}-{best}-{high}"


class EngineArtifact(Record, frozen=True, kw_only=True):
    """A built engine. `path` is relative to the build folder."""

    path: str
    sha256: str
    size_bytes: int
    plan: BuildPlan
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    device: DeviceInfo
    build_seconds: float
    builder_config: dict[str, str]
    """Every setting as the builder itself reported it before building."""
    timing_cache_in: str | None = None
    timing_cache_out: str | None = None
    timing_cache_hits: int | None = None
    """How many timings the cache saved, according to the builder's log; None if the log does not say."""
    log: str
    warnings: int
    layers: str | None = None
    """The file with the inspector's description of the engine, as the backend wrote it; None without one."""
    slowed: tuple[str, ...] | None = None
    """What slowed the GPU while tactics were timed; None for a build that times nothing."""
    notes: tuple[str, ...] = ()
    """Messages to the user about this engine's build."""

    @property
    def files(self) -> tuple[str, ...]:
        """Its file, and those of its build."""
        return tuple(name for name in (self.path, self.log, self.layers) if name)


class LayerTactic(Record, frozen=True, kw_only=True):
    """What a layer got, numbers as the inspector writes them."""

    layer: str
    implementation: str
    tactic: str
    formats: tuple[str, ...]
    """Of inputs, then outputs: type, strides, and the axis that is a vector with its length."""


class TacticLock(Record, frozen=True, kw_only=True):
    """What layers of engines got, by the engines' labels; tactics mean nothing to another builder or GPU."""

    schema: str = "trtopt.lock/1"
    backend: Backend
    device: DeviceInfo
    engines: dict[str, tuple[LayerTactic, ...]]


# ── the build folder ────────────────────────────────────────────────────────────────────────────────────


class OnnxArtifact(Record, frozen=True, kw_only=True):
    """An ONNX file. `sha256` covers its external data too; `parent` is the file it was made from."""

    path: str
    sha256: str
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    types: tuple[str, ...] = ()
    """The element types that the graph's tensors have, sorted: builder flags are derived from these."""
    parent: str | None = None

    @property
    def fixed_batch(self) -> int | None:
        """The batch size that the model fixes, or None where some input leaves axis 0 open."""
        axes = [spec.shape[0] for spec in self.inputs if spec.shape]
        fixed = [axis for axis in axes if isinstance(axis, int)]
        return fixed[0] if fixed and len(fixed) == len(axes) else None


class RewriteSummary(Record, frozen=True, kw_only=True):
    """A summary of a build's rewrite; the details are in the file `trace` of the build folder.

    `applied` and `declined` count each rule; `undone` has the reason for each undone rule. `largest_error` is
    the largest difference in the check over the output's largest magnitude, None without a check.
    """

    target: str
    nodes_before: int
    nodes_after: int
    applied: dict[str, int]
    declined: dict[str, int]
    undone: dict[str, str]
    inputs_checked: int
    largest_error: float | None
    seconds: float
    trace: str


class TuningChoice(Record, frozen=True, kw_only=True):
    """What tuning chose: the accepted candidates, and the batch size and streams to run the engine with.

    `recipe` is the engine's, as JSON; `gain` is the share of the baseline's cost that they save; `ledger` is
    the file in the folder with all candidates.
    """

    objective: str
    batch: int
    streams: int
    changes: tuple[str, ...]
    recipe: str
    gain: float
    ledger: str


class Manifest(Result, Record, frozen=True, kw_only=True):
    """`manifest.json` of a build folder: its contents and how it was made."""

    schema: str = "trtopt.build/8"
    trtopt: str
    created: str
    argv: tuple[str, ...] = ()
    onnx: OnnxArtifact
    """The engines' graph; the first engine's, if batch sizes have different graphs."""
    graphs: tuple[OnnxArtifact, ...] = ()
    """Further graphs of engines."""
    io: tuple[TypedTensor, ...] = ()
    """The inputs and outputs that were typed or laid out by request; see `trtopt.pack`."""
    intermediates: tuple[OnnxArtifact, ...] = ()
    """Files of the folder that lie between the user's model and `onnx`, each the parent of the next."""
    rewrite: RewriteSummary | None = None
    """None if the model was not rewritten; a note says why, unless that was requested."""
    engines: tuple[EngineArtifact, ...]
    verdict: PrecisionVerdict | None = None
    """The comparison of precisions; None if they were not measured."""
    tuning: TuningChoice | None = None
    """What `trtopt tune` chose; None for a build."""
    files: dict[str, str] = {}  # noqa: RUF012  (msgspec copies mutable defaults)
    """Every other file of the folder with its SHA-256."""
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    """Why the engines should not be used without a look at their accuracy."""

    @property
    def source_sha256(self) -> str:
        """The hash of the user's file."""
        first = self.intermediates[0] if self.intermediates else self.onnx
        return first.parent or first.sha256

    def graph_of(self, engine: EngineArtifact) -> OnnxArtifact:
        """The graph that an engine was built from."""
        return next((graph for graph in self.graphs if graph.sha256 == engine.plan.onnx_sha256), self.onnx)


def check_manifest(manifest: Manifest) -> None:
    """Engines are listed, have valid shapes, and all files lie in the build folder."""
    if not manifest.engines:
        raise ValueError("it lists no engines")
    if manifest.rewrite is not None:
        _check_name(manifest.rewrite.trace)
    for name in manifest.files:  # weights may lie in subfolders
        for part in name.split("/"):
            _check_name(part)
    for engine in manifest.engines:
        if engine.size_bytes < 0:
            raise ValueError(f"{engine.path} has {engine.size_bytes} bytes")
        for file in (engine.path, engine.log, engine.layers):
            if file is not None:
                _check_name(file)
        check_shapes(engine, manifest.onnx.inputs)


def check_shapes(engine: EngineArtifact, inputs: Iterable[TensorSpec]) -> None:
    """Every profile of an engine has valid ranges, one for each input."""
    plan = engine.plan
    if len(plan.multi_profile) > MAX_PROFILES:
        raise ValueError(f"{engine.path} has {len(plan.multi_profile)} optimisation profiles")
    over_all = Profile(batch=plan.batch, shapes=plan.shapes)
    for profile in (over_all, *plan.multi_profile):
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


class FolderCheck(Result, Record, frozen=True, kw_only=True):
    """Changes to a build folder's files since the build, by path in the folder.

    `extra` files were added since.
    """

    schema: str = "trtopt.verify/1"
    missing: tuple[str, ...]
    changed: tuple[str, ...]
    extra: tuple[str, ...]
    checked: int

    @property
    def is_whole(self) -> bool:
        """Whether every file is present and unchanged."""
        return not self.missing and not self.changed


# ── timing caches ───────────────────────────────────────────────────────────────────────────────────────


class Identity(Record, frozen=True, kw_only=True):
    """The machine and versions that a timing cache is valid for."""

    backend: Backend
    gpu: str
    compute_capability: str | None
    driver: str | None
    cuda: str | None


class CacheTerms(Record, frozen=True, kw_only=True):
    """The settings that decide which tactics compete.

    The winner among few tactics may not win among many, so the store has a separate cache for each setting.
    `plugins` are libraries' hashes.
    """

    opt_level: int | None = None
    workspace_bytes: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    plugins: tuple[str, ...] = ()
    tiling: str | None = None
    l2_limit_bytes: int | None = None
    build_route: str | None = None


class CacheEntry(Record, frozen=True, kw_only=True):
    """One file of the store; `problem` says why it cannot be used, and then the rest is unknown.

    `used` is when a build last read or wrote it (ISO 8601, UTC).
    """

    schema: str = "trtopt.cache/1"
    name: str
    path: str
    size_bytes: int
    used: str
    identity: Identity | None = None
    terms: CacheTerms | None = None
    problem: str | None = None
