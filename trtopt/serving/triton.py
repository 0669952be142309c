"""An engine as a model of Triton's: `config.pbtxt`, made of Triton's own schema."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtopt.errors import ArtifactError, BackendMissingError, UsageError
from trtopt.extras import install
from trtopt.records import (
    Backend,
    BatchPlan,
    BatchPolicy,
    EngineArtifact,
    Shape,
    TensorSpec,
)
from trtopt.records.tensors import TypedTensor
from trtopt.targets import ONNXRUNTIME, TENSORRT, target_of

_FILES = {TENSORRT: ("tensorrt_plan", "model.plan"), ONNXRUNTIME: ("onnxruntime_onnx", "model.onnx")}
_TYPES = {
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
} | {f"{sign}int{bits}": f"TYPE_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_ONE = [1]
KEPT_BEFORE_A_BUILD = ("max_batch_size", "platform", "input")
_KEPT = (*KEPT_BEFORE_A_BUILD, "output")
"""What all versions of a model have in common: their clients. The builder decides what outputs are."""


@dataclass(frozen=True)
class Served:
    """The engine that Triton is to run, and how: by a plan, or as a folder has it.

    A batch size that the engine fixes is served unchanged: Triton batches only along an axis whose length
    varies (server issue 1105).
    """

    engine: EngineArtifact
    policy: BatchPolicy
    workers: int
    plan: BatchPlan | None = None

    @property
    def is_batched(self) -> bool:
        """Whether Triton makes batches of requests."""
        return not self.engine.plan.batch.is_fixed

    @property
    def longest(self) -> Mapping[str, Shape]:
        """By input, the longest shape that a request brings: of one sample where Triton makes batches."""
        if self.plan is not None and self.is_batched:
            (samples,) = self.plan.buckets.values()
            return samples
        return {name: shape.max[int(self.is_batched) :] for name, shape in self.engine.plan.shapes.items()}


def triton_model(served: Served, name: str) -> tuple[str, str]:
    """The engine's name in the model's folder, and the text of `config.pbtxt`, for the model of that name."""
    messages, text_format = _schema()
    engine, policy = served.engine, served.policy
    build, backend = engine.plan, engine.plan.backend.name
    platform, file = _FILES[backend]
    batched = int(served.is_batched)
    specs = (*engine.inputs, *engine.outputs)
    if batched:
        check_batch_axes(specs)
    elif scalars := [spec.name for spec in specs if not spec.shape]:
        raise UsageError(
            f"{', '.join(map(repr, scalars))} is a scalar, or of unknown shape, which Triton does not serve",
            "give the model's input or output an axis",
        )
    config = messages.ModelConfig(name=name, platform=platform, max_batch_size=batched * policy.max_batch)
    config.version_policy.latest.num_versions = 1
    for tensors, here in ((config.input, engine.inputs), (config.output, engine.outputs)):
        for spec in here:
            added, dims = tensors.add(name=spec.name, data_type=_type(messages, spec)), _dims(served, spec)
            added.is_non_linear_format_io = spec.name in build.io_layouts
            if added.is_non_linear_format_io and len(dims) != 3:
                raise UsageError(
                    f"{spec.name!r} is vectorised and has {len(dims)} axes, and Triton takes such with 3",
                    "build again with a batch size that varies, or without the tensor's layout in --io",
                )
            added.dims.extend(dims or _ONE)
            if not dims:  # Triton takes no empty `dims`: clients have one axis, which is reshaped away
                added.reshape.SetInParent()
    group = messages.ModelInstanceGroup
    on_gpu = backend == TENSORRT
    instances = config.instance_group.add(
        count=served.workers, kind=group.KIND_GPU if on_gpu else group.KIND_CPU
    )
    if on_gpu:
        # the server sets each profile to the largest batch, and fails where one begins above it
        reached = [one.batch.min[0] <= policy.max_batch for one in build.multi_profile]
        instances.profile.extend(str(index) for index, reaches in enumerate(reached) if reaches)
        config.optimization.cuda.graphs = True
        config.optimization.input_pinned_memory.enable = True
        config.optimization.output_pinned_memory.enable = True
    if batched:
        batching = config.dynamic_batching
        batching.preferred_batch_size.append(policy.max_batch)
        batching.max_queue_delay_microseconds = round(policy.max_delay_ms * 1e3)
        batching.default_queue_policy.max_queue_size = policy.max_waiting
    _add_warmup(config, messages, served)
    return file, text_format.MessageToString(config)


def check_backend(backend: Backend) -> None:
    """Whether Triton runs engines of a backend."""
    if backend.name not in _FILES:
        raise UsageError(
            f"Triton cannot run engines of {backend.name}",
            "build or sweep with --backend tensorrt, on a machine with a GPU, or --backend onnxruntime",
        )


def check_successor(known: str, new: str, where: str, kept: Sequence[str] = _KEPT) -> None:
    """Whether a new version may take the place of a model whose config is `known`, by the fields `kept`."""
    messages, text_format = _schema()
    try:
        before = text_format.Parse(known, messages.ModelConfig())
    except text_format.ParseError as error:
        raise ArtifactError(
            f"{where}: is not a valid Triton config: {error}", "choose another --name"
        ) from None
    after = text_format.Parse(new, messages.ModelConfig())
    differing = [field for field in kept if getattr(before, field) != getattr(after, field)]
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


def check_one_length(axes: Mapping[str, Iterable[int]]) -> None:
    """Whether requests have one length: at each, other engines serve them. `axes` has lengths by axis."""
    lengths = {name: sorted(set(sizes)) for name, sizes in axes.items()}
    if several := [name for name, sizes in lengths.items() if len(sizes) > 1]:
        flags = " ".join(
            f"--axis {shlex.quote(name)}={sizes[0]},{sizes[len(sizes) // 2]},{sizes[-1]}"
            for name, sizes in lengths.items()
        )
        raise UsageError(
            f"each length of {', '.join(several)} has engines of its own, and Triton serves one engine",
            "build one for all lengths, and deploy its folder: trtopt build MODEL.onnx -o FOLDER --dynamic "
            f"--batch 1,8 {flags}",
        )


def check_batch_axes(specs: Iterable[TensorSpec]) -> None:
    """Whether Triton can make batches of what has these inputs and outputs."""
    if unbatched := [spec.name for spec in specs if not spec.shape or isinstance(spec.shape[0], int)]:
        raise UsageError(
            f"{', '.join(map(repr, unbatched))} has no batch axis in front",
            "Triton batches along axis 0 of every input and output: give the model such axes",
        )


def _dims(served: Served, spec: TensorSpec) -> list[int]:
    """The length of each axis that `config.pbtxt` has; -1 where the engine admits several."""
    shape = served.engine.plan.shapes.get(spec.name)
    axes = spec.shape if shape is None else shape.fixed
    return [axis if isinstance(axis, int) else -1 for axis in axes[int(served.is_batched) :]]


def _add_warmup(config: Any, messages: Any, served: Served) -> None:
    """The smallest and the largest batch at the longest shape, on zeros, before the model is ready."""
    for batch in sorted({1, served.policy.max_batch if served.is_batched else 1}):
        warmup = config.model_warmup.add(name=f"batch{batch}", batch_size=batch)
        for spec in served.engine.inputs:
            dims = list(served.longest[spec.name]) or _ONE
            warmup.inputs[spec.name].CopyFrom(
                messages.ModelWarmup.Input(data_type=_type(messages, spec), dims=dims, zero_data=True)
            )


def readme(served: Served, name: str, version: int, io: Sequence[TypedTensor] = ()) -> str:
    """How to start a server on the repository, and how to load it; `io` is the build's."""
    engine = served.engine
    backend = engine.plan.backend
    gpus = " --gpus=all" if backend.name == TENSORRT else ""
    source, how, load, predicted = _by_plan(served)
    return f"""# {name}, version {version}

Written by `trtopt deploy triton`{source}.
The engine ({engine.plan.label}) was built by {backend} for {engine.device.name}:
a server must have the same version and device.

Start a server ({_containers(backend)}):

    docker run --rm{gpus} -p 8000:8000 -p 8001:8001 -p 8002:8002 \\
        -v "$PWD:/models" nvcr.io/nvidia/tritonserver:YY.MM-py3 tritonserver --model-repository=/models

Load it (perf_analyzer comes with the SDK's image and from PyPI), {how}:

    perf_analyzer -m {name} -u localhost:8001 -i grpc{_inputs(served)} \\
        {load} --measurement-interval=10000

{predicted}{_typed(io)}The newest version is served; to go back, set `version_policy` in
config.pbtxt to `{{ specific {{ versions: [N] }} }}`.
"""


def _by_plan(served: Served) -> tuple[str, str, str, str]:
    """Where it is from, how it is loaded, with which options of perf_analyzer, and what is predicted.

    Without a plan twice as many requests are under way as run at a time.
    """
    if (plan := served.plan) is None:
        batch = served.policy.max_batch if served.is_batched else 1
        return "", "with every batch full", f"--concurrency-range={2 * batch * served.workers}", ""
    distribution = "constant" if plan.load.arrivals == "constant" else "poisson"
    percentile = plan.goal.partition("=")[0].removeprefix("p").partition(".")[0]
    made, planned = plan.prediction, {one.artifact.sha256: one.artifact.plan.label for one in plan.engines}
    engines = "" if served.engine.sha256 in planned else f", with engines for {', '.join(planned.values())}"
    return (
        f" from a plan for {plan.goal} at {plan.load.rate:,.4g} requests/s ({plan.load.arrivals} arrivals)",
        "at the plan's rate",
        f"--request-rate-range={max(1, round(plan.load.rate))} --request-distribution={distribution} "
        f"--percentile={percentile}",
        f"""The plan predicts, for trtopt's own runtime and without a network{engines}:
p50 {made.p50.value:.3g} ms, p99 {made.p99.value:.3g} ms ({made.p99.low:.3g} to {made.p99.high:.3g}), \
{made.throughput.value:,.0f} requests/s. This was not measured on Triton.

""",
    )


def _inputs(served: Served) -> str:
    """Options of perf_analyzer: lengths of open axes, and zeros for what may be indices, which it draws."""
    inputs = served.engine.inputs
    lengths = "".join(
        " --shape " + shlex.quote(f"{spec.name}:{','.join(map(str, served.longest[spec.name]))}")
        for spec in inputs
        if -1 in _dims(served, spec)
    )
    has_integers = any("int" in spec.dtype for spec in inputs)
    return lengths + " --input-data=zero" * has_integers


def _typed(io: Sequence[TypedTensor]) -> str:
    if not io:
        return ""
    lines = "".join(f"- {one}\n" for one in io)
    return f"Clients send and receive (`trtopt.pack` and `trtopt.unpack` convert):\n\n{lines}\n"


def _containers(backend: Backend) -> str:
    """Which releases YY.MM of the container have the backend's version."""
    if backend.name != TENSORRT:
        return "YY.MM: 24.05 or newer"
    return f"YY.MM: {target_of(backend).triton_releases}, the one whose notes name {backend}"
