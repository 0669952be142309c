"""Graphs: parts of one, what is left of one that fails, and how two differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from trtopt.printable import counted
from trtopt.records import (
    Extraction,
    GraphNode,
    ModelDifference,
    NodeChange,
    ReducedNode,
    ReduceReport,
    WeightChange,
)
from trtopt.records.base import Row
from trtopt.report.view import Block, Column, Lines, View, cells_of, columns_of, plain, table, view_of

_SHOWN = 20
"""Rows of each table on a terminal without -v; the page and the JSON have all."""


@view_of.register
def extraction_view(part: Extraction) -> View:
    """How large it is, and what it takes and gives."""
    lines = [
        f"{part.out}: {part.nodes} of {part.nodes_before} nodes",
        *(f"  input {one.name} {one.type_text}" for one in part.inputs),
        *(f"  output {one.name} {one.type_text}" for one in part.outputs),
    ]
    return View("", [Lines(lines, is_copied=True)])


@view_of.register
def reduce_view(report: ReduceReport) -> View:
    """What is left of the model, how it fails, and in how many steps that was found."""
    resumed = f", {report.resumed} of them by an earlier run" if report.resumed else ""
    fixed = "open axes have the samples' lengths; " if report.fixed_shapes else ""
    lines = [
        f"{report.model}: {len(report.nodes)} of {counted(report.nodes_before, 'node')} still fail: "
        f"{report.out}, inputs {report.data}",
        f"{report.symptom.kind}: {report.symptom.detail}",
        f"{counted(report.steps, 'step')}{resumed}; {report.seconds:.1f} s; {fixed}"
        + ("each node is needed" if report.minimal else "fewer may do: raise --max-steps, and run it again"),
    ]
    columns = [
        Column[ReducedNode]("operator", lambda one: one.op),
        Column("node", lambda one: one.name, fit="fold"),
    ]
    rows: list[Row] = [cells_of(one) for one in report.nodes]
    notes = [*report.notes, *(f"the whole model fails otherwise too: {one.detail}" for one in report.others)]
    return View("", [Lines(lines, is_copied=True), table("", columns, report.nodes)], plain(notes), rows=rows)


@view_of.register
def difference_view(found: ModelDifference) -> View:
    """How many of what differ, then each; a row for each node."""
    differ = ", ".join(
        [
            *(f"{counted(len(nodes), 'node')} {how}" for how, nodes in _nodes_of(found).items() if nodes),
            *([counted(len(found.weights), "weight")] if found.weights else []),
            *([f"types or shapes of {counted(len(found.tensors), 'tensor')}"] if found.tensors else []),
            *(one.what for one in found.facts),
        ]
    )
    title = f"{found.a} (A) and {found.b} (B): {differ or 'no difference'}"
    renamed = f"; {found.renamed} under other names" if found.renamed else ""
    same = Lines([f"{counted(found.same, 'node')} the same{renamed}"])
    return View(title, [same, *_tables(found)], rows=_rows(found))


def _nodes_of(found: ModelDifference) -> dict[str, Sequence[GraphNode | NodeChange]]:
    return {"added": found.added, "removed": found.removed, "changed": found.changed}


def _tables(found: ModelDifference) -> Iterator[Block]:
    sides: list[Column[Any]] = columns_of(("A", "B"), lambda one: (one.a, one.b), None, fit="fold")
    facts = [Column[Any]("model", lambda one: one.what), *sides]
    tensors = [
        Column[Any]("tensor", lambda one: one.name, fit="fold"),
        Column("role", lambda one: one.role),
        *sides,
    ]
    nodes: list[Column[Any]] = [
        Column("operator", lambda one: one.op),
        Column("node", lambda one: one.node, fit="fold"),
    ]
    changed: list[Column[Any]] = [
        *nodes,
        Column("in B", lambda one: _if_other(one.other, one.node), fit="fold", is_optional=True),
        Column("what", lambda one: one.what, fit="fold"),
    ]
    weights: list[Column[WeightChange]] = [
        Column("weight", lambda one: one.weight, fit="fold"),
        Column("in B", lambda one: _if_other(one.other, one.weight), fit="fold", is_optional=True),
        Column("A", lambda one: one.a, fit="fold"),
        Column("B", lambda one: _if_other(one.b, one.a), fit="fold", is_optional=True),
        Column("|B-A|/|A|", lambda one: one.relative, ".2g"),
        Column("largest", lambda one: one.largest, ".2g"),
    ]
    shown = [
        table("", facts, found.facts),
        table("added in B", nodes, found.added),
        table("removed from A", nodes, found.removed),
        table("changed", changed, found.changed),
        table("weights", weights, found.weights),
        table("types and shapes", tensors, found.tensors),
    ]
    for one in shown:
        rest = [f"… {len(one.rows) - _SHOWN} more", *[""] * (len(one.columns) - 1)]
        if one.rows:
            yield replace(one, top=_SHOWN, rest=rest)


def _if_other(b: str, a: str) -> str:
    return "" if b == a else b


def _rows(found: ModelDifference) -> Iterator[dict[str, str | int | float | None]]:
    for change, records in (
        *_nodes_of(found).items(),
        ("weight", found.weights),
        ("tensor", found.tensors),
        ("model", found.facts),
    ):
        for one in records:
            yield {"change": change, **cells_of(one)}
