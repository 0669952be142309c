"""The same model built again, by another TensorRT or driver: what changed besides its speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trtopt.data import open_data
from trtopt.data.feeds import extremes, specs_of
from trtopt.data.fit import samples_in
from trtopt.data.readers import read_npz, write_npz
from trtopt.device.ort.reference import CannotRun
from trtopt.errors import TrtoptError, UsageError
from trtopt.executors.api import run_job
from trtopt.files.atomic import scratch_folder
from trtopt.measure.engine import DescribeJob, LoadedEngine, OutputsJob, outputs_file
from trtopt.onnxio import model_file, prepare
from trtopt.onnxio.model_file import ModelFile
from trtopt.precision.compare import is_numeric, without_padding
from trtopt.precision.rounding_noise import ChangedOutput, RoundedModels, unit_of
from trtopt.records import OnnxArtifact, OutputChange, Upgrade
from trtopt.requests.measure import CompareRequest, ExplainRequest
from trtopt.workflows.bench.resolve_engines import find_engines
from trtopt.workflows.build.folder import verified_graphs
from trtopt.workflows.listener import Listener
from trtopt.workflows.profile.explain import explain

Side = Mapping[int, LoadedEngine]
"""Engines by batch size."""
_LAYERS_S = 1.0
_ALIKE = ("batch", "data", "backend", "shapes", "axes", "timeout", "trust")


def upgraded_model(paths: Sequence[Path], notes: list[str]) -> ModelFile:
    """The graph that A's engines are made of."""
    graphs = [_graph_of(path) for path in paths]
    types = [", ".join(graph.types) for graph in graphs]
    if types[0] != types[-1]:
        notes.append(f"A's graph has {types[0]}, B's {types[-1]}: what rounding explains is judged by A's")
    model = model_file.load(Path(graphs[0].path))
    return replace(model, proto=prepare.prepare(model.proto)[0])


def _graph_of(path: Path) -> OnnxArtifact:
    folder, manifest, engines = find_engines(path)
    if manifest is None:
        raise UsageError(
            f"{path}: no manifest names its model, and --upgrade compares results with the model's",
            "give folders that `trtopt build` made",
        )
    wanted = manifest.graph_of(engines[0]).sha256
    return next(one for one in verified_graphs(folder, manifest) if one.sha256 == wanted)


def upgrade_of(model: ModelFile, a: Side, b: Side, request: CompareRequest, listener: Listener) -> Upgrade:
    """What became of results, layers, memory and build time from A's engines to B's."""
    notes: list[str] = []
    pairs = {size: (a[size], b[size]) for size in sorted(a)}
    unit = unit_of(model.proto, on_gpu=any(one.artifact.device.kind == "gpu" for one in b.values()))
    rounded, outputs = RoundedModels(model, unit), list[OutputChange]()
    for size, pair in pairs.items():
        listener.phase(f"batch{size}", "comparing results")
        outputs += changed_outputs(model, rounded, pair, size, request, notes)
    most_s = min(request.duration or _LAYERS_S, _LAYERS_S)
    alike = {name: getattr(request, name) for name in _ALIKE}
    try:
        layers = explain(
            ExplainRequest(request.a, str(request.b), kernels=False, duration=most_s, **alike), listener
        ).engines
    except TrtoptError as error:
        layers = ()
        notes.append(f"layers are not compared: {error.problem}")
    return Upgrade(
        unit=unit,
        outputs=tuple(outputs),
        layers=layers,
        batches=tuple(pairs),
        engines=tuple((old.artifact, new.artifact) for old, new in pairs.values()),
        memory_bytes=tuple((_memory(old, request), _memory(new, request)) for old, new in pairs.values()),
        notes=tuple(notes),
    )


def _memory(engine: LoadedEngine, request: CompareRequest) -> int | None:
    artifact = engine.artifact
    job = DescribeJob(path=engine.path, sha256=artifact.sha256, backend=artifact.plan.backend.name)
    return run_job(job, limit_s=request.timeout).context_bytes


def changed_outputs(
    model: ModelFile,
    rounded: RoundedModels,
    pair: Sequence[LoadedEngine],
    size: int,
    request: CompareRequest,
    notes: list[str],
) -> tuple[OutputChange, ...]:
    """What of each output rounding does not explain, on the user's data and on seeded extremes."""
    found: dict[str, ChangedOutput] = {}
    specs = specs_of(model.proto)
    with scratch_folder() as scratch:
        seeded, names = scratch / "inputs", list[str]()
        seeded.mkdir()
        for feed in extremes(model.proto, pair[0].shapes):
            try:
                rounded.exact(feed.values)
                rounded.moved(feed.values)
            except CannotRun as error:
                notes.append(f"not compared on {feed.name} inputs: {error.problem}")
                continue
            write_npz(seeded / f"{len(names):03}.npz", feed.values)
            names.append(f"{feed.name} inputs")
        sources = [] if request.data is None else [str(request.data)]
        for place, source in enumerate((*sources, *[str(seeded)] * bool(names))):
            folders = [scratch / f"{side}{place}" for side in "ab"]
            for engine, folder in zip(pair, folders, strict=True):
                folder.mkdir()
                job = OutputsJob(engine=engine, inputs=specs, data=source, batch=size, folder=str(folder))
                run_job(job, limit_s=request.timeout)
            for index, values in enumerate(open_data(source).batches(specs, size)):
                moved, count = rounded.moved(values), samples_in(values, specs)
                both = [read_npz(outputs_file(folder, index)) for folder in folders]
                what = names[index] if source == str(seeded) else f"data, batch {index + 1}"
                for name, exact in rounded.exact(values).items():
                    if is_numeric(exact):
                        one = found.setdefault(name, ChangedOutput(name, rounded.unit))
                        a, b = (without_padding(side[name], exact, count) for side in both)
                        one.add(what, exact, [run[name] for run in moved], a, b)
    return tuple(one.result(size) for one in found.values())
