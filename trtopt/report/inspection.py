"""What `trtopt inspect` shows: a model, an engine or a folder on one screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trtopt.printable import counted, some_of
from trtopt.records import Capability, EngineContents, Inspection, Member, ModelContents, Subgraph, TensorSpec
from trtopt.records.base import Row
from trtopt.report.bench import backend_text
from trtopt.report.build import engines_table
from trtopt.report.view import (
    Block,
    Column,
    Lines,
    View,
    cells_of,
    each_text,
    mib,
    mib_text,
    names_text,
    plain,
    short,
    table,
    view_of,
)

_PARTS = 8
"""So many subgraphs have a row of their own."""
_NAMES = 2


@view_of.register
def inspection_view(found: Inspection) -> View:
    """What it is in the title; then its parts."""
    blocks: list[Block] = []
    if found.capability is not None:
        blocks += _capability_blocks(found.capability)
    elif found.model is not None:
        model = found.model
        blocks += [_tensors_table(model.inputs, model.outputs), Lines([*_model_lines(model)])]
    if found.engines:
        blocks += _engines_blocks(found.engines)
    if found.members:
        columns: list[Column[Member]] = [
            Column("file", lambda one: one.name, fit="fold"),
            Column("what", lambda one: one.what, fit="fold"),
            Column("size MiB", lambda one: mib(one.size_bytes), ".3g"),
        ]
        blocks.append(table("", columns, found.members))
    title = f"{found.path}: {found.what}, {mib_text(found.size_bytes)}"
    rows: Iterable[Row] = (
        ({"operator": name, "nodes": count} for name, count in found.model.operators.items())
        if found.model is not None
        else map(cells_of, found.members)
    )
    return View(title, blocks, plain(found.notes), rows=rows)


# ── models ──────────────────────────────────────────────────────────────────────────────────────────────


def _tensors_table(inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec], title: str = "") -> Block:
    columns: list[Column[tuple[str, TensorSpec]]] = [
        Column("", lambda one: one[0]),
        Column("name", lambda one: one[1].name, fit="fold"),
        Column("type", lambda one: one[1].dtype),
        Column("shape", lambda one: " × ".join(map(str, one[1].shape)), fit="cut"),
    ]
    rows = [("input", one) for one in inputs] + [("output", one) for one in outputs]
    return table(title, columns, rows)


def _model_lines(model: ModelContents) -> Iterator[str]:
    yield f"operators: {each_text(model.operators) or 'none'} ({counted(model.nodes, 'node')})"
    kinds = (f"{one.dtype} {short(one.elements)} ({mib_text(one.size_bytes)})" for one in model.weights)
    yield f"parameters: {', '.join(kinds) or 'none'}"
    if model.weight_files:
        yield f"weights outside the file: {some_of(model.weight_files, _NAMES)}"
    shapes = ", ".join(f"{name} {_axes(shape)}" for name, shape in model.shapes.items()) or "no inputs"
    yield f"MACs: {'not known' if model.macs is None else short(model.macs)} at {shapes}"
    if model.qdq_types:
        yield f"Q/DQ: {', '.join(model.qdq_types)}"
    if model.subgraphs:
        yield f"subgraphs: {model.subgraphs}, whose MACs are not counted"
    if model.functions:
        yield f"functions: {', '.join(model.functions)}"
    others = "".join(f", {domain} {version}" for domain, version in model.domains.items())
    made_by = f", by {model.producer}" if model.producer else ""
    yield f"opset {model.opset}{others}, IR {model.ir_version}{made_by}"


# ── what a target takes ─────────────────────────────────────────────────────────────────────────────────


def _capability_blocks(found: Capability) -> Iterator[Block]:
    count = counted(len(found.refused), "refusal") if found.refused else "no refusal"
    yield Lines(
        [f"target {found.target}: {count} among {counted(found.nodes, 'node')}, by {found.judged_by}"]
    )
    if not found.refused:
        return
    groups: dict[tuple[str, str], list[str]] = {}
    for one in found.refused:
        what = one.operator or ("input" if one.input else "")
        groups.setdefault((what, one.reason), []).append(one.node or one.input)
    columns: list[Column[tuple[tuple[str, str], list[str]]]] = [
        Column("operator", lambda one: one[0][0]),
        Column("count", lambda one: len(one[1]), ""),
        Column("nodes", lambda one: names_text(one[1]), fit="fold"),
        Column("reason", lambda one: one[0][1], fit="fold"),
    ]
    yield table("Refused", columns, groups.items())
    yield Lines([f"{one.node or one.input}: {one.reason}" for one in found.refused], is_detail=True)
    if not found.subgraphs:
        return
    parts: list[Column[Subgraph]] = [
        Column("nodes", lambda one: len(one.nodes), ""),
        Column("from", lambda one: some_of(one.inputs, _NAMES), fit="fold"),
        Column("to", lambda one: some_of(one.outputs, _NAMES), fit="fold"),
        Column("imported", lambda one: "yes" if one.is_imported else "operators looked up"),
    ]
    rest = (sum(len(one.nodes) for one in found.subgraphs[_PARTS:]), "in smaller subgraphs", "", "")
    yield table("Subgraphs that it can take", parts, found.subgraphs, top=_PARTS, rest=rest)


# ── engines ─────────────────────────────────────────────────────────────────────────────────────────────


def _engines_blocks(engines: Sequence[EngineContents]) -> Iterator[Block]:
    """A row for each, what they take and give, and what is inside each."""
    first = engines[0].artifact
    yield engines_table(one.artifact for one in engines)
    yield _tensors_table(first.inputs, first.outputs, first.path if len(engines) > 1 else "")
    for engine in engines:
        yield Lines([f"{engine.artifact.path}: {line}" for line in _engine_lines(engine)])
    where = f"on {first.device.name}" if first.device.kind != "none" else "without a GPU"
    yield Lines([f"built by {backend_text(first.plan.backend)} {where}"])
    settings = (f"{name} {value}" for name, value in first.builder_config.items() if value)
    yield Lines([f"settings: {'; '.join(settings)}"], is_detail=True)


def _engine_lines(engine: EngineContents) -> Iterator[str]:
    plan = engine.artifact.plan
    for number, profile in enumerate(plan.profiles):
        open_ones = [
            f"{name} {_axes(one.min)} to {_axes(one.max)}, tuned for {_axes(one.opt)}"
            for name, one in profile.shapes.items()
            if not one.is_fixed
        ]
        if open_ones:
            yield f"profile {number}: {'; '.join(open_ones)}"
    yield (
        f"{engine.layers} layers: {each_text(engine.kinds)}"
        if engine.layers
        else "its layers are not described"
    )
    if engine.weight_types:
        yield f"weights: {each_text(engine.weight_types, '.1%')}"
    if engine.context_bytes is not None:
        yield f"{mib_text(engine.context_bytes)} for the activations of a context"


def _axes(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"
