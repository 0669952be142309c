"""What a model, an engine, a folder or a file of trtopt holds, read without running any of it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

import onnx
from msgspec.structs import replace

from trtopt.builder.shapes import axis_lengths, axis_name, batch_name
from trtopt.device.tensorrt.capability import ParseJob
from trtopt.errors import (
    ArtifactError,
    BackendMissingError,
    InvalidModelError,
    ModelError,
    NoGpuError,
    TrtoptError,
    UsageError,
    WrongPathError,
)
from trtopt.executors.api import run_job
from trtopt.files.bounded_reading import read_bounded
from trtopt.files.formats import OtherFormat, format_by_content
from trtopt.files.manifests import MANIFEST, is_build_folder, read_manifest, read_plan, read_verified
from trtopt.files.outputs import head_of
from trtopt.inspect.costs import macs_of
from trtopt.inspect.graph import DEQUANTIZE, read_graph
from trtopt.inspect.inspector import EngineLayer, read_inspector
from trtopt.onnxio.external_data import size_in_bytes, tensors_of
from trtopt.onnxio.graph_walk import (
    OWN_DOMAINS,
    DisjointNames,
    inner_nodes,
    opset_of,
    parts_of,
    reads_of,
    real_inputs,
)
from trtopt.onnxio.model_file import ModelFile, load
from trtopt.onnxio.model_info import check_opset, check_soundness, dtype_name, tensor_spec
from trtopt.onnxio.prepare import inline_and_name, inline_functions, prepare
from trtopt.records import (
    Capability,
    EngineArtifact,
    EngineContents,
    Inspection,
    Manifest,
    Member,
    ModelContents,
    Refusal,
    Shape,
    Subgraph,
    TensorSpec,
    WeightGroup,
    kind_of,
)
from trtopt.records.base import Result
from trtopt.requests.models import InspectRequest
from trtopt.requests.recipe import sizes_in
from trtopt.rewrite.lint import UNBUILDABLE, find_advice
from trtopt.targets import DISPLAYED, RTX, TENSORRT, target_named
from trtopt.workflows.bench.resolve_engines import check_trust, external_engine, is_external
from trtopt.workflows.cache_folder import entries
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.profile.profile import read_profile
from trtopt.workflows.report import read_check
from trtopt.workflows.sweep.folder import is_sweep, read_sweep

_ENGINES = {b"ftrt": TENSORRT, b"vtrt": RTX}
"""By the first bytes of an engine: the backend that wrote it."""
_BY_SUFFIX = {".onnx": "an ONNX model", ".cache": "a timing cache"}
_KINDS = {
    "build": "the manifest of a build",
    "calibration": "ranges from `trtopt quantize`",
    "ledger": "the candidates of `trtopt tune`",
    "peaks": "a device's measured peaks",
    "quantization": "the decisions of `trtopt quantize`",
    "runspread": "how much runs differ on this machine",
    "tuned": "the result of `trtopt tune`",
}
"""What the files are whose schema is not called after a command."""


_READERS: Mapping[str, Callable[[Path], Result]] = {
    "trtopt.bench": read_result,
    "trtopt.check": read_check,
    "trtopt.plan": read_plan,
    "trtopt.profile": read_profile,
    "trtopt.sweep": read_sweep,
}
"""The files whose result is shown again."""


def inspect_shown(request: InspectRequest) -> tuple[Inspection, Result | None]:
    """What a path is and holds; with the result that it is a file or folder of, to be shown as it was."""
    path = Path(request.path)
    found, result = _identify(path, request)
    if request.capability is not None and found.model is None:
        raise UsageError(
            f"--capability: {path} is {found.what}, not a model", "give the ONNX file, or omit the option"
        )
    return found, result


def _identify(path: Path, request: InspectRequest) -> tuple[Inspection, Result | None]:
    if path.is_dir():
        return _inspect_folder(path)
    if not path.is_file():
        raise WrongPathError(f"{path}: is no regular file", "give a file or a folder")
    check_trust(request.trust, [path])
    folder = path.parent
    if is_build_folder(folder):
        manifest = read_manifest(folder)
        if engines := [one for one in manifest.engines if one.path == path.name]:
            contents, notes = _engines_of(folder, manifest, engines)
            found = _about(path, f"an engine of the build {folder}", notes)
            return replace(found, engines=contents), None
    head, is_trusted = head_of(path), is_external(path, request.trust)
    if head[:4] in _ENGINES or is_trusted:
        return _inspect_bare(path, head, is_trusted=is_trusted), None
    kind = _kind_of(path)
    if kind is not None:
        read = _READERS.get(kind)
        return _about(path, _text_of_kind(kind)), None if read is None else read(path)
    return _inspect_model(path, request), None


def _about(path: Path, what: str, notes: Sequence[str] = ()) -> Inspection:
    return Inspection(path=str(path), what=what, size_bytes=_size(path), notes=tuple(notes))


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(one.stat().st_size for one in files if one.is_file())


# ── models ──────────────────────────────────────────────────────────────────────────────────────────────


def _inspect_model(path: Path, request: InspectRequest) -> Inspection:
    """An ONNX file; what `trtopt build` would refuse of it is a note, for it is a reason to look into it."""
    try:
        file = load(path)
    except InvalidModelError:
        other = format_by_content(path)
        if other is None and path.suffix == ".onnx":
            raise
        other = other or OtherFormat("of an unknown kind")
        raise WrongPathError(
            f"{path}: is {other.what}: no model, no engine and no file of trtopt",
            other.remedy_for(path, "give one of these, or a folder that trtopt made"),
        ) from None
    notes = []
    try:
        check_opset(file.proto, path)
        check_soundness(file.proto, path)
    except ModelError as error:
        notes.append(f"trtopt refuses it: {error.problem.removeprefix(f'{path}: ')}")
    inputs = tuple(map(tensor_spec, real_inputs(file.proto.graph)))
    shapes, open_axes = _shapes_of(inputs, request)
    if open_axes:
        flags = " ".join(f"--axis {shlex.quote(f'{name}=N')}" for name in open_axes)
        notes.append(f"MACs are counted at length 1 of {', '.join(open_axes)}: {flags} gives others")
    found = replace(_about(path, "an ONNX model", notes), model=_contents_of(file, shapes))
    if request.capability is None:
        return found
    capability, reasons = _judge(path, file, request.capability, request.listener.note)
    return replace(found, capability=capability, notes=reasons)


def _shapes_of(
    inputs: Sequence[TensorSpec], request: InspectRequest
) -> tuple[dict[str, Shape], tuple[str, ...]]:
    """The shapes to count work at, and the axes besides the batch that are not given: they have length 1."""
    lengths, batch = axis_lengths(inputs, sizes_in(None, request.axes).axes), batch_name(inputs)
    open_axes: dict[str, None] = {}

    def length_of(spec: TensorSpec, place: int, axis: int | str) -> int:
        if isinstance(axis, int):
            return axis
        if place == 0 or axis == batch:
            return request.batch
        if (spec.name, place) not in lengths:
            open_axes[axis_name(spec, place)] = None
            return 1
        return lengths[spec.name, place][1]

    shapes = {
        spec.name: tuple(length_of(spec, place, axis) for place, axis in enumerate(spec.shape))
        for spec in inputs
    }
    return shapes, tuple(open_axes)


def _contents_of(file: ModelFile, shapes: Mapping[str, Shape]) -> ModelContents:
    """What is in a model; its work is counted with its inputs at these shapes."""
    model = file.proto
    parts = [*parts_of(model)]
    operators = Counter(
        node.op_type if node.domain in OWN_DOMAINS else f"{node.domain}::{node.op_type}"
        for part in parts
        for node in part.node
    )
    graph = read_graph(inline_functions(model), shapes)
    dequantised = {graph.dtypes.get(node.inputs[0], "") for node in graph.nodes if node.op == DEQUANTIZE}
    return ModelContents(
        opset=opset_of(model),
        ir_version=model.ir_version,
        producer=f"{model.producer_name} {model.producer_version}".strip(),
        domains={one.domain: one.version for one in model.opset_import if one.domain not in OWN_DOMAINS},
        inputs=tuple(map(tensor_spec, real_inputs(model.graph))),
        outputs=tuple(map(tensor_spec, model.graph.output)),
        nodes=operators.total(),
        operators=dict(operators.most_common()),
        functions=tuple(one.name for one in model.functions),
        subgraphs=len(parts) - 1 - len(model.functions),
        weights=tuple(_weights_of(model)),
        weight_files=tuple(one.name for one in file.files[1:]),
        qdq_types=tuple(sorted(dequantised - {""})),
        macs=macs_of(graph),
        shapes=dict(shapes),
    )


def _weights_of(model: onnx.ModelProto) -> Iterator[WeightGroup]:
    """The largest first."""
    tensors: dict[str, list[tuple[int, int]]] = {}
    for one in tensors_of(model):
        size = size_in_bytes(one)
        tensors.setdefault(dtype_name(one.data_type), []).append((prod(one.dims), size))
    for dtype, sizes in sorted(tensors.items(), key=lambda item: -sum(size for _, size in item[1])):
        elements, nbytes = map(sum, zip(*sizes, strict=True))
        yield WeightGroup(dtype=dtype, tensors=len(sizes), elements=elements, size_bytes=nbytes)


# ── what a target can take of it: the parts between the nodes that it cannot ────────────────────────────────


def _judge(
    path: Path, file: ModelFile, target: str, enter: Callable[[str], None]
) -> tuple[Capability, tuple[str, ...]]:
    """What a target takes of a model, by its parser where that is installed, else by trtopt's table."""
    model = inline_and_name(file.proto)
    unknown: tuple[str, ...]
    notes: tuple[str, ...] = ()
    try:
        job = ParseJob(path=str(path.absolute()), target=target)
        parsed = run_job(job, on_progress=lambda index, phase, fraction: enter(phase))
    except (BackendMissingError, NoGpuError) as error:
        advice = find_advice(prepare(file), target_named(target))
        refused = tuple(
            Refusal(node=one.node, operator=one.op, reason=one.reason)
            for one in advice
            if one.check in UNBUILDABLE
        )
        unknown, judged_by = tuple(node.name for node in model.graph.node), "trtopt's table of operators"
        # what installs TensorRT installs its newest
        remedy = error.remedy if job.backend == RTX else f"install TensorRT {target} where a GPU is"
        notes = (f"no parser was asked: {error.problem.splitlines()[0]}: {remedy}",)
    else:
        refused, unknown = parsed.refused, parsed.unknown
        judged_by = f"the parser of {DISPLAYED[parsed.backend.name]} {parsed.backend.version}"
    owners = {one.name: node.name for node in model.graph.node for one in inner_nodes(node)}
    lost = {one.input for one in refused if one.input}
    gone = {owners[one.node] for one in refused if one.node in owners}
    gone |= {node.name for node in model.graph.node if reads_of(node) & lost}
    return (
        Capability(
            target=target,
            judged_by=judged_by,
            nodes=len(model.graph.node),
            refused=refused,
            subgraphs=subgraphs_between(model.graph, gone, unknown),
        ),
        notes,
    )


def subgraphs_between(
    graph: onnx.GraphProto, refused: Collection[str], unknown: Collection[str] = ()
) -> tuple[Subgraph, ...]:
    """The connected parts of a sorted graph without the nodes called so, the largest first.

    A node's depth is how many refused nodes lie on the longest way to it. Nodes of one depth can be built
    together: a way from one to another through a refused node would end deeper. What follows from constants
    alone belongs to none.
    """
    refused, unknown = {*refused}, {*unknown}
    constants = {one.name for one in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.name in refused or not reads_of(node) <= constants:
            nodes.append(node)
        else:
            constants.update(node.output)
    reads = {node.name: reads_of(node) for node in nodes}
    makers = {name: node.name for node in nodes for name in node.output if name}
    depths: dict[str, int] = {}
    sets = DisjointNames(reads)
    for name, tensors in reads.items():
        before = {makers[tensor] for tensor in tensors if tensor in makers}
        depths[name] = max((depths[one] + (one in refused) for one in before), default=0)
        if name not in refused:
            alike = (one for one in before if one not in refused and depths[one] == depths[name])
            sets.join(name, *sorted(alike))
    parts: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        if node.name not in refused:
            parts.setdefault(sets.root(node.name), []).append(node)
    found = []
    for part in parts.values():
        inside = {node.name: None for node in part}
        made = [name for node in part for name in node.output if name]
        entering = {tensor: None for name in inside for tensor in sorted(reads[name])}
        others = {one.name for one in graph.output}.union(
            *(tensors for name, tensors in reads.items() if name not in inside)
        )
        found.append(
            Subgraph(
                nodes=tuple(inside),
                inputs=tuple(one for one in entering if one not in made and one not in constants),
                outputs=tuple(one for one in made if one in others),
                is_imported=not inside.keys() & unknown,
            )
        )
    return tuple(sorted(found, key=lambda one: -len(one.nodes)))


# ── engines ─────────────────────────────────────────────────────────────────────────────────────────────


def _engines_of(
    folder: Path, manifest: Manifest, engines: Sequence[EngineArtifact]
) -> tuple[tuple[EngineContents, ...], list[str]]:
    """Engines of a build with the layers stored next to them; and why an engine's are not known."""
    found, notes = [], []
    for engine in engines:
        layers: tuple[EngineLayer, ...] = ()
        if (name := engine.layers) is not None:
            try:
                text = read_verified(folder / name, manifest.files.get(name, "")).decode()
                layers = read_inspector(text, name)
            except (TrtoptError, OSError, ValueError) as error:
                notes.append(f"{engine.path}: its layers are not known: {error}")
        found.append(engine_contents(engine, layers))
    return tuple(found), notes


def engine_contents(
    artifact: EngineArtifact, layers: Sequence[EngineLayer], context_bytes: int | None = None
) -> EngineContents:
    """An engine with its layers by kind and its weights by type."""
    weights: Counter[str] = Counter()
    for layer in layers:
        if layer.weights_count:
            weights[layer.weights_dtype or "unknown"] += layer.weights_count
    return EngineContents(
        artifact=artifact,
        layers=len(layers) if layers else None,
        kinds=dict(Counter(layer.kind or "unknown" for layer in layers).most_common()),
        weight_types={dtype: count / weights.total() for dtype, count in weights.most_common()},
        context_bytes=context_bytes,
    )


def _inspect_bare(path: Path, head: bytes, *, is_trusted: bool) -> Inspection:
    """An engine that no manifest describes: who wrote it; if it is trusted, what it holds."""
    what = _engine_text(head)
    if not is_trusted:
        name = shlex.quote(str(path))
        note = (
            "no manifest describes it, and an engine is native code: "
            f"`trtopt inspect {name} --trust {name}` loads it, where it was built"
        )
        return _about(path, what, [note])
    try:
        engine, described = external_engine(path, _ENGINES.get(head[:4], TENSORRT), with_layers=True)
    except (NoGpuError, BackendMissingError) as error:
        raise type(error)(error.problem, "load it where its GPU and its TensorRT are") from None
    layers, notes = tuple[EngineLayer, ...](), []
    try:
        layers = read_inspector(described.layers or "", path.name)
    except ArtifactError as error:
        notes.append(f"its layers are not known: {error.problem}")
    contents = engine_contents(engine, layers, described.context_bytes)
    return replace(_about(path, what, notes), engines=(contents,))


def _engine_text(head: bytes) -> str:
    """The library, and the version that TensorRT-RTX 1.7 was seen to write there."""
    backend = _ENGINES.get(head[:4])
    if backend is None:
        return "an engine, as --trust says"
    version = f" {'.'.join(map(str, head[24:28]))}" if backend == RTX else ""
    return f"an engine of {DISPLAYED[backend]}{version}, by its first bytes"


# ── folders ─────────────────────────────────────────────────────────────────────────────────────────────


def _inspect_folder(folder: Path) -> tuple[Inspection, Result | None]:
    if is_build_folder(folder):
        manifest = read_manifest(folder)
        engines, notes = _engines_of(folder, manifest, manifest.engines)
        what = "a build folder" if manifest.tuning is None else "a build folder of `trtopt tune`"
        members = tuple(_members_of(folder, manifest))
        notes += manifest.notes
        return replace(_about(folder, what, notes), engines=engines, members=members), None
    members = tuple(_members_of(folder))
    if is_sweep(folder):
        return replace(_about(folder, "a sweep folder"), members=members), read_sweep(folder)
    if not members:
        raise WrongPathError(
            f"{folder}: holds nothing that trtopt knows",
            "give a model, an engine, or a folder or file that trtopt made",
        )
    what = "a store of timing caches" if entries(folder) else "a folder"
    return replace(_about(folder, what), members=members), None


def _members_of(folder: Path, manifest: Manifest | None = None) -> Iterator[Member]:
    """The files and folders in a folder that are known."""
    roles = {} if manifest is None else dict(_roles_in(manifest))
    for path in sorted(folder.iterdir()):
        with suppress(OSError):  # such as a pipe, or what may not be read
            what = roles.get(path.name) or _text_of(path)
            if what is not None:
                yield Member(name=path.name, what=what, size_bytes=_size(path))


def _roles_in(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield MANIFEST, _KINDS["build"]
    for graph in (manifest.onnx, *manifest.graphs):
        yield Path(graph.path).name, "the graph that engines are built from"
    for engine in manifest.engines:
        yield engine.path, "an engine"
        yield engine.log, "its builder's log"
        if engine.layers is not None:
            yield engine.layers, "its layers, as the builder describes them"


def _text_of(path: Path) -> str | None:
    if path.is_dir():
        return "a build folder" if is_build_folder(path) else "a sweep folder" if is_sweep(path) else None
    head = head_of(path)
    if head[:4] in _ENGINES:
        return _engine_text(head)
    if (kind := _kind_of(path)) is not None:
        return _text_of_kind(kind)
    other = format_by_content(path)
    return _BY_SUFFIX.get(path.suffix) or (other.what if other is not None else None)


def _kind_of(path: Path) -> str | None:
    """The schema of a file of trtopt's."""
    if path.suffix != ".json" and not head_of(path).lstrip().startswith(b'{"schema"'):
        return None
    with suppress(OSError, ValueError):
        return kind_of(read_bounded(path))
    return None


def _text_of_kind(kind: str) -> str:
    name = kind.removeprefix("trtopt.")
    return _KINDS.get(name, f"a result of `trtopt {name}`")
