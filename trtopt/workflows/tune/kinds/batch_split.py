"""The front of the graph on parts of the batch, where its tensors exceed the cache: a chain of engines."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.inspect.batch_split import predicted_splits
from trtopt.onnxio.model_file import load
from trtopt.onnxio.segments import Cut, CutGraph
from trtopt.records import BatchSplit, TensorSpec
from trtopt.records.tensors import IMAGE_RANK, VECTORS
from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior

_PARTS = (2, 4, 8, 16)
_MOST = 4
"""Candidates of one incumbent."""
_LAYOUTS = {"int8": "chw32", "float16": "hwc8"}
"""What fast kernels of convolutions read and write, by type."""
_PRIOR = Prior(0.03, 0.25, 0.05, 0.4)


def _changes(situation: Situation) -> Iterator[Change]:
    cache, evidence = situation.device.cache_bytes, situation.evidence
    parts = [count for count in _PARTS if situation.batch % count == 0]
    if cache is None or not parts or not evidence.layers or situation.recipe.split:
        return
    shapes = {spec.name: tuple(int(axis) for axis in spec.shape) for spec in situation.inputs}
    graph = CutGraph(load(evidence.model).proto, shapes)
    if graph.fixed_input is not None:
        return
    fronts = [(cut.tensors, graph.ancestors(cut.tensors)) for cut in _narrowest(graph)]
    found = predicted_splits(evidence.layers, evidence.graph, fronts, parts, cache, evidence.peaks)
    for one in found[:_MOST]:
        specs = [graph.spec(name) for name in one.tensors]
        layouts = {spec.name: layout for spec in specs if (layout := _layout(situation, spec))}
        split = str(BatchSplit(tensors=one.tensors, parts=one.parts, layouts=layouts))
        gain = one.saved_ms / evidence.total_ms
        yield Change(
            "batch-split",
            f"split={split}",
            recipe={"split": (split,)},
            prior=Prior(gain, _PRIOR.probability, _PRIOR.loss, _PRIOR.risk),
            evidence=f"on {one.parts} parts of the batch the front fits into {cache >> 20} MiB of cache",
        )


def _narrowest(graph: CutGraph) -> Iterator[Cut]:
    """Of the cuts through tensors of one shape the one with the fewest bytes, the last of several."""
    found: dict[tuple[object, ...], Cut] = {}
    for cut in graph.cuts():
        shape = tuple(graph.spec(name).shape for name in cut.tensors)
        if shape not in found or cut.bytes_per_sample <= found[shape].bytes_per_sample:
            found[shape] = cut
    yield from found.values()


def _layout(situation: Situation, spec: TensorSpec) -> str | None:
    """The vectorised format for a tensor whose channels fill it; None for the linear one."""
    layout = _LAYOUTS.get(spec.dtype)
    if situation.backend.name == ONNXRUNTIME or layout is None or len(spec.shape) != IMAGE_RANK:
        return None
    if layout not in target_of(situation.backend).io_formats.get(spec.dtype, ()):
        return None
    return layout if int(spec.shape[1]) % VECTORS[layout] == 0 else None


KIND = Kind("batch-split", _PRIOR, 1.5, _changes)
