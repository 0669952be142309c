"""Where in a graph the error enters: both models run, and tensors of the same name are compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx

from trtopt.data import SampleSource
from trtopt.data.feeds import specs_of
from trtopt.onnxio.half_emulation import in_fp32
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import FLOAT, LOW
from trtopt.precision.deviation import Deviation
from trtopt.precision.observe import float_tensors, shards_of
from trtopt.precision.reference_runs import at_most
from trtopt.precision.stages import part_of
from trtopt.records.precision import LayerDifference

_SAMPLES = 16


def layer_differences(
    reference: ModelFile, other: ModelFile, source: SampleSource
) -> tuple[LayerDifference, ...]:
    """The tensors that both have, the one whose node added most error first; on the first samples only.

    What a node adds is the error's share of the energy in what it makes, less the largest such share among
    the tensors that it reads.
    """
    made = {name: node for node in other.proto.graph.node for name in node.output}
    names = [name for name in float_tensors(reference, (FLOAT, *LOW.values())) if name in made]
    found = {name: Deviation(name) for name in names}
    specs, both = specs_of(reference.proto), [in_fp32(model) for model in (reference, other)]
    for shard in shards_of(reference, source, names) if names else ():
        sessions = [part_of(model, shard) for model in both]
        for feed in at_most(source.batches(specs, 1), _SAMPLES, specs):
            wanted, got = (session.run(session.fitted(feed)) for session in sessions)
            for name in shard:
                if wanted[name].shape == got[name].shape:
                    found[name].add(wanted[name], got[name])
    return ranked(made, {name: item.sqnr_db for name, item in found.items()})


def ranked(
    made: Mapping[str, onnx.NodeProto], sqnr: Mapping[str, float | None]
) -> tuple[LayerDifference, ...]:
    """The tensors of `sqnr` (None: no error) by what their nodes, in `made`, added; pure arithmetic."""
    share = {name: 0.0 if db is None else 10 ** (-db / 10) for name, db in sqnr.items()}
    rows = []
    for name in sqnr:
        node = made[name]
        before = max((share[item] for item in _sources(node.input, made, share)), default=0.0)
        rows.append(
            LayerDifference(
                tensor=name,
                node=node.name,
                op=node.op_type,
                sqnr_db=sqnr[name],
                added=max(0.0, share[name] - before),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.added))


def _sources(
    names: Iterable[str], made: Mapping[str, onnx.NodeProto], known: Mapping[str, float]
) -> set[str]:
    """The nearest known tensors that `names` come from, past nodes that only one model has."""
    found: set[str] = set()
    left, seen = list(names), set()
    while left:
        name = left.pop()
        if name in known:
            found.add(name)
        elif name in made and name not in seen:
            seen.add(name)
            left.extend(made[name].input)
    return found
