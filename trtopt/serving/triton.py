"""A plan as a model of Triton's: `config.pbtxt`, made of Triton's own schema."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtopt.errors import ArtifactError, BackendMissingError, UsageError
from trtopt.extras import install
from trtopt.records import Backend, BatchPlan, BuildPlan, EngineArtifact, TensorSpec
from trtopt.records.tensors import TypedTensor
from trtopt.targets import target_of

_FILES = {"tensorrt": ("tensorrt_plan", "model.plan"), "onnxruntime": ("onnxruntime_onnx", "model.onnx")}
_TYPES = {
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
} | {f"{sign}int{bits}": f"TYPE_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_ONE = [1]
_KEPT = ("max_batch_size", "platform", "input", "output")
"""What all versions of a model have in common: their clients."""


@dataclass(frozen=True)
class TritonModel:
    """The engine to copy, its name in the model's folder, and the text of `config.pbtxt`."""

    engine: EngineArtifact
    file: str
    config: str


def triton_model(plan: BatchPlan, name: str) -> TritonModel:
    """What Triton needs to serve the plan as the model of that name.

    Triton batches only along an axis whose length varies (server issue 1105), and serves one engine a model:
    a plan is deployed that has one engine for a range of batches, as `trtopt plan --for triton` chooses it.
    """
    messages, text_format = _schema()
    engine = plan.engines[0].artifact
    build, backend = engine.plan, engine.plan.backend.name
    high = build.batch.max[0]
    if backend not in _FILES:
        raise UsageError(
            f"Triton cannot run engines of {backend}", "plan with engines of tensorrt or onnxruntime"
        )
    reach = sum(span.high - span.low + 1 for span in build.spans)
    if len(plan.engines) > 1 or reach != high or build.batch.min[0] == high:
        names = ", ".join(one.artifact.plan.label for one in plan.engines)
        raise UsageError(
            f"the plan has {names}: Triton batches for one engine that runs every batch size from 1 on",
            "plan again with --for triton, and with a build of --dynamic among the measured ones",
        )
    _check_batch_axes(engine)
    platform, file = _FILES[backend]
    config = messages.ModelConfig(name=name, platform=platform, max_batch_size=plan.policy.max_batch)
    config.version_policy.latest.num_versions = 1
    for spec in engine.inputs:
        added = config.input.add(name=spec.name, data_type=_type(messages, spec))
        if spec.name in build.io_layouts:
            added.is_non_linear_format_io = True
        _set_dims(added, _dims(build, spec))
    for spec in engine.outputs:
        dims = [axis if isinstance(axis, int) else -1 for axis in spec.shape]
        added = config.output.add(name=spec.name, data_type=_type(messages, spec))
        if spec.name in build.io_layouts:
            added.is_non_linear_format_io = True
        _set_dims(added, dims[1:])
    group = messages.ModelInstanceGroup
    on_gpu = backend == "tensorrt"
    instances = config.instance_group.add(
        count=plan.workers, kind=group.KIND_GPU if on_gpu else group.KIND_CPU
    )
    if on_gpu and build.multi_profile:
        instances.profile.extend(str(index) for index in range(len(build.multi_profile)))
    if on_gpu:
        config.optimization.cuda.graphs = True
        config.optimization.input_pinned_memory.enable = True
        config.optimization.output_pinned_memory.enable = True
    batching = config.dynamic_batching
    batching.preferred_batch_size.append(plan.policy.max_batch)
    batching.max_queue_delay_microseconds = round(plan.policy.max_delay_ms * 1e3)
    batching.default_queue_policy.max_queue_size = plan.policy.max_waiting
    _add_warmup(config, messages, plan)
    return TritonModel(engine, file, text_format.MessageToString(config))


def check_successor(known: str, new: str, where: str) -> None:
    """Whether a new version may take the place of a model whose config is `known`."""
    messages, text_format = _schema()
    try:
        before = text_format.Parse(known, messages.ModelConfig())
    except text_format.ParseError as error:
        raise ArtifactError(
            f"{where}: is not a valid Triton config: {error}", "choose another --name"
        ) from None
    after = text_format.Parse(new, messages.ModelConfig())
    differing = [field for field in _KEPT if getattr(before, field) != getattr(after, field)]
    if differing:
        raise UsageError(
            f"{where}: the model there has another {', '.join(differing)}, which all its versions share",
            "deploy under another --name",
        )


def _schema() -> tuple[Any, Any]:
    try:
        from google.protobuf import text_format
        from tritonclient.grpc import model_config_pb2
    except ImportError as error:
        raise BackendMissingError(f"{error.name or error} is not installed", install("triton")) from None
    return model_config_pb2, text_format


def _type(messages: Any, spec: TensorSpec) -> Any:
    if spec.dtype not in _TYPES:
        raise UsageError(f"{spec.name!r}: Triton has no element type {spec.dtype}", "cast it in the model")
    return messages.DataType.Value(_TYPES[spec.dtype])


def _check_batch_axes(engine: EngineArtifact) -> None:
    specs = (*engine.inputs, *engine.outputs)
    if unbatched := [spec.name for spec in specs if not spec.shape or isinstance(spec.shape[0], int)]:
        raise UsageError(
            f"{engine.plan.label}: {', '.join(map(repr, unbatched))} has no batch axis in front",
            "Triton batches along axis 0 of every input and output: give the model such axes",
        )


def _dims(build: BuildPlan, spec: TensorSpec) -> list[int]:
    """What the engine admits along each axis but the batch; -1 where that is a range."""
    shapes = build.shapes[spec.name]
    return [low if low == high else -1 for low, high in zip(shapes.min[1:], shapes.max[1:], strict=True)]


def _set_dims(tensor: Any, dims: list[int]) -> None:
    """Triton takes no empty `dims`: what has no axis but the batch has one for clients, reshaped away."""
    tensor.dims.extend(dims or _ONE)
    if not dims:
        tensor.reshape.SetInParent()


def _add_warmup(config: Any, messages: Any, plan: BatchPlan) -> None:
    """The smallest and the largest batch at the longest shape, on zeros, before the model is ready."""
    engine, shapes = plan.engines[0].artifact, plan.buckets[max(plan.buckets)]
    for batch in sorted({1, plan.policy.max_batch}):
        warmup = config.model_warmup.add(name=f"batch{batch}", batch_size=batch)
        for spec in engine.inputs:
            dims = list(shapes[spec.name]) or _ONE
            warmup.inputs[spec.name].CopyFrom(
                messages.ModelWarmup.Input(data_type=_type(messages, spec), dims=dims, zero_data=True)
            )


def readme(plan: BatchPlan, name: str, version: int, io: Sequence[TypedTensor] = ()) -> str:
    """How to start a server on the repository, and how to load it as the plan was; `io` is the build's."""
    engine = plan.engines[0].artifact
    built = f"{engine.plan.backend} for {engine.device.name}"
    cost = plan.prediction
    gpus = " --gpus=all" if engine.plan.backend.name == "tensorrt" else ""
    distribution = "constant" if plan.load.arrivals == "constant" else "poisson"
    percentile = plan.goal.partition("=")[0].removeprefix("p").partition(".")[0]
    p50, p99 = f"p50 {cost.p50.value:.3g} ms", f"p99 {cost.p99.value:.3g} ms"
    interval = f"({cost.p99.low:.3g} to {cost.p99.high:.3g})"
    return f"""# {name}, version {version}

Written by `trtopt deploy triton` from a plan for {plan.goal} at {plan.load.rate:,.4g} requests/s
({plan.load.arrivals} arrivals). The engine was built by {built}: a server must have the
same version and device.

Start a server ({_containers(engine.plan.backend)}):

    docker run --rm{gpus} -p 8000:8000 -p 8001:8001 -p 8002:8002 \\
        -v "$PWD:/models" nvcr.io/nvidia/tritonserver:YY.MM-py3 tritonserver --model-repository=/models

Load it at the plan's rate (perf_analyzer comes with the SDK's image and from PyPI):

    perf_analyzer -m {name} -u localhost:8001 -i grpc{_inputs(plan)} \\
        --request-rate-range={max(1, round(plan.load.rate))} --request-distribution={distribution} \\
        --percentile={percentile} --measurement-interval=10000

{_typed(io)}The plan predicts, for trtopt's own runtime and without a network: {p50}, {p99}
{interval}, {cost.throughput.value:,.0f} requests/s. This was not measured on Triton.

The newest version is served; to go back, set `version_policy` in config.pbtxt to
`{{ specific {{ versions: [N] }} }}`.
"""


def _inputs(plan: BatchPlan) -> str:
    """Options of perf_analyzer: lengths of open axes, and zeros for what may be indices, which it draws."""
    engine, shapes = plan.engines[0].artifact, plan.buckets[max(plan.buckets)]
    lengths = "".join(
        " --shape " + shlex.quote(f"{spec.name}:{','.join(map(str, shapes[spec.name]))}")
        for spec in engine.inputs
        if -1 in _dims(engine.plan, spec)
    )
    has_integers = any("int" in spec.dtype for spec in engine.inputs)
    return lengths + " --input-data=zero" * has_integers


def _typed(io: Sequence[TypedTensor]) -> str:
    if not io:
        return ""
    lines = "".join(f"- {one}\n" for one in io)
    return f"Clients send and receive (`trtopt.pack` and `trtopt.unpack` convert):\n\n{lines}\n"


def _containers(backend: Backend) -> str:
    """Which releases YY.MM of the container have the backend's version."""
    if backend.name != "tensorrt":
        return "YY.MM: 24.05 or newer"
    return f"YY.MM: {target_of(backend).triton_releases}, the one whose notes name {backend}"
