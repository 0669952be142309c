"""Layers: where the time goes, as a treemap, by group and by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trtopt.records import (
    Collected,
    EngineProfile,
    EngineTensor,
    LayerGroup,
    ProfiledLayer,
    ProfileReport,
)
from trtopt.report.html.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Lines,
    Missing,
    Panel,
    Section,
    Table,
    known_columns,
)
from trtopt.report.html.charts import bars, name
from trtopt.report.html.colours import type_scale
from trtopt.report.html.timeline import timeline
from trtopt.report.html.treemap import treemap
from trtopt.report.names import kind_text, nodes_text, type_text
from trtopt.report.profile import count_text, coverage_lines, total_lines

_GROUPS = 12
_MS, _MFLOP = Column("ms", "number", 4), Column("MFLOP", "number", 2)
_COLUMNS = (
    Column("layer"),
    _MS,  # a phone shows the first three
    Column("share", "share", 1),
    Column("kind"),
    Column("type"),
    Column("p10 ms", "number", 4),
    Column("p90 ms", "number", 4),
    Column("floor ms", "number", 4),
    Column("× floor", "number", 1),
    Column("bound by"),
    _MFLOP,
    Column("MB", "number", 3),
)


def engine_panels(collected: Collected) -> list[tuple[str, ProfileReport, EngineProfile]]:
    """Every profiled engine with its name on the page."""
    multi_profile = len(collected.profiles) > 1
    return [
        (f"batch {engine.batch}" + (f" ({file})" if multi_profile else ""), report, engine)
        for file, report in collected.profiles.items()
        for engine in report.engines
    ]


def layers_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each engine."""
    panels = [Panel(label, list(_blocks(engine))) for label, _, engine in engine_panels(collected)]
    return Section("layers", "Layers", panels) if panels else Missing("layers", command)


def _blocks(engine: EngineProfile) -> Iterator[Block]:
    is_timed = engine.sum_ms > 0
    lines = [count_text(engine), *total_lines(engine)]
    lines += coverage_lines(engine.coverage) if is_timed else []
    yield Lines(lines)
    if is_timed:
        yield treemap(engine)
        yield timeline(engine)
        yield _groups("Time by kind", engine.by_kind)
        yield _types(engine.by_dtype)
        yield _groups("Time by ONNX node, with the reformats that serve it", engine.by_node)
        yield _groups("Time by module path", engine.by_module)
    columns, rows = known_columns(_COLUMNS, [_row(layer, engine.sum_ms) for layer in engine.layers])
    first = _MS if is_timed else _MFLOP
    yield Table(
        "Layers with the nodes they cover" if is_timed else "Nodes with their minimum cost",
        columns,
        rows,
        [_details(layer) for layer in engine.layers],
        sorted_by=columns.index(first) if first in columns else None,
    )


def _groups(title: str, groups: Sequence[LayerGroup]) -> Chart:
    return bars(title, largest(groups))


def _types(groups: Sequence[LayerGroup]) -> Chart:
    rows = largest(groups)
    colour = name("key", scale=type_scale(row["key"] for row in rows), legend=None)
    return bars("Time by type", rows, colour)


def largest(groups: Sequence[LayerGroup]) -> list[dict[str, Any]]:
    """The largest groups, and all others as one."""
    rows: list[dict[str, Any]] = [
        {"key": group.key, "ms": group.ms, "share": group.share, "layers": group.layers}
        for group in groups[:_GROUPS]
    ]
    rest = groups[_GROUPS:]
    if rest:
        rows.append(
            {
                "key": f"{len(rest)} others",
                "ms": sum(group.ms for group in rest),
                "share": sum(group.share for group in rest),
                "layers": sum(group.layers for group in rest),
            }
        )
    return rows


def _row(layer: ProfiledLayer, sum_ms: float) -> list[Cell]:
    cost = layer.cost
    floor = cost.floor_ms if cost is not None else None
    return [
        nodes_text(layer),
        layer.ms,
        layer.ms / sum_ms if layer.ms is not None and sum_ms else None,
        kind_text(layer),
        type_text(layer),
        layer.low_ms,
        layer.high_ms,
        floor,
        layer.ms / floor if layer.ms is not None and floor else None,
        cost.bound if cost is not None else "",
        cost.flops / 1e6 if cost is not None else None,
        cost.bytes_moved / 1e6 if cost is not None else None,
    ]


def _details(layer: ProfiledLayer) -> list[tuple[str, str]]:
    """Details beyond the row, without names that its first cell already shows."""
    facts = [
        ("layer", layer.name),
        ("ONNX nodes", " + ".join(layer.onnx_nodes)),
        ("operators", ", ".join(layer.onnx_ops)),
        ("mapped by", layer.mapped_by),
        ("tactic", layer.tactic),
        ("requested type", layer.requested_dtype),
        ("weights", f"{layer.weights_count:,}" if layer.weights_count else ""),
        ("inputs", "; ".join(map(_tensor, layer.inputs))),
        ("outputs", "; ".join(map(_tensor, layer.outputs))),
    ]
    return [(what, fact) for what, fact in facts if fact and fact != nodes_text(layer)]


def _tensor(tensor: EngineTensor) -> str:
    shape = "×".join(map(str, tensor.shape)) if tensor.shape is not None else ""
    return " ".join(part for part in (tensor.name, shape, tensor.format or tensor.dtype) if part)
