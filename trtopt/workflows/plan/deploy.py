"""From a plan, a sweep or a build folder into a model repository of Triton's, with the engine it needs."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from trtopt.builder.shapes import batch_name, over_all, profiles_for
from trtopt.device.backends import open_builder
from trtopt.errors import ArtifactError, UsageError
from trtopt.files.atomic import lock, scratch_folder, write_atomically
from trtopt.files.manifests import check_plugins, is_build_folder, read_manifest
from trtopt.files.outputs import check_output, folder_in_progress, hashed_kind, with_hash, write_output
from trtopt.measure.analysis.sweep_points import choices_of
from trtopt.printable import counted
from trtopt.recipe import Recipe
from trtopt.records import MAX_PROFILES, BatchPolicy, BuildPlan, EngineArtifact, OnnxArtifact
from trtopt.requests.serve import DeployRequest
from trtopt.serving.load_folder import Opening, opening_of
from trtopt.serving.triton import (
    KEPT_BEFORE_A_BUILD,
    Served,
    check_backend,
    check_batch_axes,
    check_one_length,
    check_successor,
    readme,
    triton_model,
)
from trtopt.workflows.build.folder import verified_graphs
from trtopt.workflows.listener import Listener
from trtopt.workflows.sweep.folder import is_sweep, read_sweep
from trtopt.workflows.workbench import Workbench

CONFIG = "config.pbtxt"
_IN_CONFIG, _IN_README = "# {}", "<!-- {} -->"
_CONFIG, _README = hashed_kind("a config", _IN_CONFIG), hashed_kind("a README", _IN_README)


def deploy(request: DeployRequest) -> Path:
    """Write an engine into a Triton model repository, as the next version of a model.

    Triton serves one engine, with batches of any size: one is built where the source has an engine for each.

    Returns:
        The folder of the new version.
    """
    source, repository = Path(request.source), Path(request.output)
    name, whole = request.name, source.resolve()
    if name is None:  # a folder's name may have a dot that begins no suffix
        name = whole.name.removesuffix(".sweep") if whole.is_dir() else whole.stem
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise UsageError(f"--name {name!r}: not a model name", "give --name of letters, digits, _, - and .")
    chosen = _of_sweep(source, request.listener) if is_sweep(source) else opening_of(source)
    if chosen.plan is not None:
        check_one_length({"NAME": chosen.plan.buckets})
    largest = chosen.largest
    policy = chosen.policy or BatchPolicy(max_batch=largest.plan.batch.max[0], max_delay_ms=0.0)
    served_as = partial(Served, policy=policy, workers=chosen.workers, plan=chosen.plan)
    build = (chosen.folder / largest.path).parent
    check_backend(largest.plan.backend)
    io = read_manifest(build).io if is_build_folder(build) else ()
    folder = repository / name
    if is_build_folder(folder) or is_sweep(folder):
        raise UsageError(f"{folder}: is a build or a sweep, no model of Triton's", "choose another --name")
    with lock(folder):
        config = folder / CONFIG
        if folder.exists():  # what cannot be written is found before anything is built
            check_output(config, _CONFIG)
        known = config.read_text("utf-8", errors="replace") if config.is_file() else None
        source_of = _to_build(chosen, build, policy.max_batch, request)
        if source_of is not None and known is not None:  # a build takes minutes
            planned = triton_model(served_as(_unbuilt(largest, source_of[1])), name)[1]
            check_successor(known, planned, str(config), KEPT_BEFORE_A_BUILD)
        if source_of is None:
            engine, content = largest, chosen.content_of(largest)
        else:
            engine, content = _build(*source_of, request.listener)
        served = served_as(engine)
        file, text = triton_model(served, name)
        if known is not None:
            check_successor(known, text, str(config))
        version = 1 + max((int(one.name) for one in folder.glob("*") if one.name.isdecimal()), default=0)
        with folder_in_progress(folder / str(version)) as made:  # Triton loads versions as they appear
            write_atomically(made / file, content)
        readme_file = folder / "README.md"  # others' words in it stay
        if not readme_file.exists() or (readme_file.is_file() and _README.is_own(readme_file)):
            write_atomically(readme_file, with_hash(readme(served, name, version, io), _IN_README))
        write_output(config, with_hash(text, _IN_CONFIG), _CONFIG)
    return folder / str(version)


def _of_sweep(folder: Path, listener: Listener) -> Opening:
    """The precision and the streams of the knee, and the batch sizes up to its."""
    report = read_sweep(folder)
    choices = choices_of(report)
    if not choices:
        raise UsageError(f"{folder}: nothing has been measured there", "sweep again, and see what failed")
    knee = choices[0].knee
    build = folder / str(knee.build)
    check_one_length({name: [one.axes[name] for one in choices] for name in knee.setting.axes})
    hashes = {
        one.engine.sha256
        for one in report.measured
        if one.engine and one.build == knee.build and one.setting.batch <= knee.setting.batch
    }
    engines = [one for one in read_manifest(build).engines if one.sha256 in hashes]
    if not engines:
        raise ArtifactError(
            f"{folder}: {knee.label} was measured on another engine than {build} has (hashes differ)",
            "sweep again into another folder",
        )
    listener.note(
        f"{knee.label}: the most samples/s for its latency; for a bound, plan: trtopt plan "
        f"{shlex.quote(str(folder))} -o plan.json --slo p99=10ms"
    )
    policy = BatchPolicy(max_batch=knee.setting.batch, max_delay_ms=0.0)
    return Opening(build, engines, policy, knee.setting.streams)


# ── one engine for all batch sizes ──────────────────────────────────────────────────────────────────────


def _to_build(
    chosen: Opening, build: Path, high: int, request: DeployRequest
) -> tuple[OnnxArtifact, BuildPlan] | None:
    """Graph and plan of the engine to build; None where the largest runs what Triton requests.

    Triton makes batches of any size up to the largest. Where the model fixes the batch it makes none.
    """
    engine = chosen.largest
    plan = engine.plan
    reach = sum(span.high - span.low + 1 for span in plan.spans)
    if len(chosen.engines) == 1 and (high == 1 or reach == plan.batch.max[0] > 1):
        return None
    graphs = verified_graphs(build, read_manifest(build)) if is_build_folder(build) else []
    graph = next((one for one in graphs if one.sha256 == plan.onnx_sha256), None)
    if graph is None:
        raise ArtifactError(
            f"{build}: no longer has the model that {plan.label} was built from", "measure and plan again"
        )
    if graph.fixed_batch is not None:
        request.listener.note(
            f"the model fixes batch {graph.fixed_batch}: served without batching, as many rows a request; "
            f"`trtopt rewrite --dynamic-batch` makes it dynamic"
        )
        return None
    check_batch_axes((*graph.inputs, *graph.outputs))
    check_plugins([engine], request.trust)
    if len({one.plan.onnx_sha256 for one in chosen.engines}) > 1:
        request.listener.note(f"one engine has one graph: that of {plan.label} serves all batch sizes")
    whole = for_all_batches(plan, graph, tuned_sizes([one.plan for one in chosen.engines], high))
    return graph, whole


def _unbuilt(engine: EngineArtifact, plan: BuildPlan) -> EngineArtifact:
    """What another engine of the same graph is to be, as far as that is known before the build."""
    inputs, outputs = (
        tuple(msgspec.structs.replace(spec, shape=("batch", *spec.shape[1:])) for spec in specs)
        for specs in (engine.inputs, engine.outputs)
    )
    return msgspec.structs.replace(engine, plan=plan, inputs=inputs, outputs=outputs)


def _build(graph: OnnxArtifact, plan: BuildPlan, listener: Listener) -> tuple[EngineArtifact, bytes]:
    """The engine, with its content."""
    listener.note(
        f"building one engine with {counted(len(plan.profiles), 'optimisation profile')}, {plan.label}: "
        "Triton serves one engine, with batches of any size"
    )
    builder = open_builder(plan.backend.name)
    with scratch_folder() as scratch:
        bench = Workbench(builder=builder, listener=listener).with_caches(Recipe(), scratch, None)
        (made,) = bench.build_again((graph,), (plan,), scratch)
        return made, (scratch / made.path).read_bytes()


def tuned_sizes(plans: Sequence[BuildPlan], high: int) -> list[int]:
    """The batch sizes up to `high` that engines are tuned for or end at; of too many some, evenly."""
    ranges = [profile.batch for plan in plans for profile in plan.profiles]
    sizes = sorted({high, *(size for one in ranges for size in (*one.opt, *one.max) if size < high)})
    return sizes[:: -math.ceil(len(sizes) / MAX_PROFILES)][::-1]


def for_all_batches(plan: BuildPlan, graph: OnnxArtifact, sizes: Sequence[int]) -> BuildPlan:
    """An engine with a profile tuned for each size, which reaches down to the size before."""
    lengths: dict[str, tuple[int, ...]] = {
        f"{spec.name}.{index}": (shape.min[index], shape.opt[index], shape.max[index])
        for spec in graph.inputs
        for index, axis in enumerate(spec.shape)
        if index and isinstance(axis, str) and axis != batch_name(graph.inputs)
        for shape in (plan.shapes[spec.name],)
    }
    ranges = [(below + 1, size, size) for below, size in zip((0, *sizes), sizes, strict=False)]
    profiles = profiles_for(graph, ranges, Recipe(axes=lengths))
    reach = over_all(profiles)
    return msgspec.structs.replace(
        plan,
        batch=reach.batch,
        shapes=reach.shapes,
        multi_profile=profiles if len(profiles) > 1 else (),
    )
