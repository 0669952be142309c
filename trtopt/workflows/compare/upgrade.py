"""The same model built again, by another TensorRT or driver: what changed besides its speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from trtopt.data import open_data
from trtopt.data.feeds import extremes, specs_of
from trtopt.data.fit import samples_in
from trtopt.data.readers import Arrays, write_npz
from trtopt.device.ort.reference import CannotRun
from trtopt.errors import TrtoptError, UsageError
from trtopt.executors.api import run_job
from trtopt.files.atomic import scratch_folder, writing
from trtopt.measure.engine import DescribeJob, LoadedEngine
from trtopt.onnxio import model_file
from trtopt.onnxio.graph_walk import data_dependent_outputs
from trtopt.onnxio.prepare import prepare
from trtopt.precision.compare import without_padding
from trtopt.precision.rounding_noise import ChangedOutput, RoundedModels
from trtopt.records import OnnxArtifact, OutputChange, Upgrade, UpgradedEngine
from trtopt.requests.measure import CompareRequest, ExplainRequest
from trtopt.workflows.bench.resolve_engines import find_engines, runs_on
from trtopt.workflows.build.folder import verified_graphs
from trtopt.workflows.precision.checker import run_over
from trtopt.workflows.profile.explain import explain

Side = Mapping[int, LoadedEngine]
"""Engines by batch size."""
Graphs = Mapping[str, OnnxArtifact]
"""By the hash that plans have."""
_LAYERS_S = 1.0
_MISSING = np.empty(0)
"""For an output that an engine lacks, where the user forced the comparison."""


def built_graphs(path: Path, request: CompareRequest) -> Graphs:
    """The graphs of a build; its own engines have to run, for what is built in their place is not judged."""
    folder, manifest, engines = find_engines(path)
    if manifest is None or not engines:
        raise UsageError(
            f"--upgrade {path}: no manifest names the engines' model, with whose results theirs are compared",
            "give folders that `trtopt build` made",
        )
    own, here = engines[0].plan.backend.name, runs_on(path, request.backend)
    if own != here:
        raise UsageError(
            f"--upgrade {path}: its engines are of {own}, and with {here} others would be built and judged",
            f"give --backend {own}, on a machine that runs them",
        )
    graphs = {graph.sha256: graph for graph in verified_graphs(folder, manifest)}
    return {one.plan.onnx_sha256: graphs[manifest.graph_of(one).sha256] for one in engines}


def upgrade_of(
    graphs: Sequence[Graphs],
    sides: Sequence[Side],
    request: CompareRequest,
    notes: list[str],
) -> Upgrade:
    """What became of results, layers, memory and build time from A's engines to B's."""
    outputs, engines = list[OutputChange](), list[UpgradedEngine]()
    rounded: dict[str, RoundedModels] = {}
    for size in sorted(sides[0]):
        request.listener.phase(f"batch{size}", "comparing results")
        old, new = pair = [side[size] for side in sides]
        a, b = (own[one.artifact.plan.onnx_sha256] for own, one in zip(graphs, pair, strict=True))
        if a.types != b.types:
            types = [", ".join(graph.types) for graph in (a, b)]
            notes.append(f"A's graph has {types[0]}, B's {types[1]}: what rounding explains is judged by A's")
        if a.sha256 not in rounded:
            rounded = {a.sha256: rounded_models(Path(a.path), pair)}  # one at a time, for they are large
        outputs += changed_outputs(rounded[a.sha256], pair, request, notes)
        engines.append(
            UpgradedEngine(
                batch=size,
                a=old.artifact,
                b=new.artifact,
                a_memory_bytes=_memory(old, request.timeout),
                b_memory_bytes=_memory(new, request.timeout),
            )
        )
    own = {"kernels": False, "duration": min(request.duration or _LAYERS_S, _LAYERS_S)}
    try:
        layers = explain(ExplainRequest(**request.values_for(ExplainRequest) | own)).engines
    except TrtoptError as error:
        layers = ()
        notes.append(f"layers are not compared: {error.problem}")
    return Upgrade(outputs=tuple(outputs), layers=layers, engines=tuple(engines))


def _memory(engine: LoadedEngine, limit_s: float | None) -> int | None:
    artifact = engine.artifact
    job = DescribeJob(path=engine.path, sha256=artifact.sha256, backend=artifact.plan.backend.name)
    return run_job(job, limit_s=limit_s).context_bytes


def rounded_models(graph: Path, pair: Sequence[LoadedEngine]) -> RoundedModels:
    """What engines that were made of a graph are judged by."""
    on_gpu = any(one.artifact.device.kind == "gpu" for one in pair)
    return RoundedModels(prepare(model_file.load(graph)), on_gpu=on_gpu)


def changed_outputs(
    rounded: RoundedModels,
    pair: Sequence[LoadedEngine],
    request: CompareRequest,
    notes: list[str],
) -> tuple[OutputChange, ...]:
    """What of each output rounding does not explain, on the user's data and on seeded extremes."""
    found, size = dict[str, ChangedOutput](), pair[0].batch
    specs, sized = specs_of(rounded.model), data_dependent_outputs(rounded.model.graph)
    with scratch_folder() as scratch:
        seeded, known = scratch / "inputs", list[tuple[str, Arrays, list[Arrays]]]()
        seeded.mkdir()
        for feed in extremes(rounded.model, pair[0].shapes):
            try:
                results = rounded.exact(feed.values), rounded.moved(feed.values)
            except CannotRun as error:
                notes.append(f"not compared on {feed.name} inputs: {error.problem}")
                continue
            with writing(seeded):
                write_npz(seeded / f"{len(known):03}.npz", feed.values)
            known.append((f"{feed.name} inputs", *results))
        sources = [] if request.data is None else [str(request.data)]
        for place, source in enumerate((*sources, *[str(seeded)] * bool(known))):
            ran = []
            for engine, side in zip(pair, "ab", strict=True):
                folder = scratch / f"{side}{place}"
                folder.mkdir()
                ran.append(run_over(engine, specs, source, folder, limit_s=request.timeout))
            feeds = open_data(source).batches(specs, size)
            for index, (values, *both) in enumerate(zip(feeds, *ran, strict=True)):
                if source == str(seeded):
                    what, wanted, moved = known[index]
                else:
                    what = f"data, batch {index + 1}"
                    wanted, moved = rounded.exact(values), rounded.moved(values)
                count = samples_in(values, specs)
                for name, exact in wanted.items():
                    one = found.setdefault(name, ChangedOutput(name, rounded.unit))
                    a, b = (side.get(name, _MISSING) for side in both)
                    if name not in sized:
                        a, b = (without_padding(side, exact, count) for side in (a, b))
                    one.add(what, exact, [run[name] for run in moved], a, b)
    return tuple(one.result(size) for one in found.values())
