"""Layers: their table, and charts of where the time goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from trtopt.records import DevicePeaks, EngineProfile, EngineTensor, ProfiledLayer
from trtopt.report.charts import Channel, Datum, chart, coloured_types, listed, marks
from trtopt.report.view import Chart, Column, Spec, Table, names_text, table

_TOP_LAYERS = 10
_KINDS = 7
_MOSTLY = 0.5


def layers_table(engine: EngineProfile) -> Table:
    """The layers, with their times and floors."""
    columns: list[Column[ProfiledLayer]] = [
        Column("layer", nodes_text, fit="cut"),
        Column("ms", lambda one: one.ms, ".4f", width=7, is_optional=True),  # a phone shows the first three
        Column("share", lambda one: _ratio(one.ms, engine.sum_ms), ".1%", width=6, is_optional=True),
        Column("spread", _spread, ".0%", width=6, is_optional=True),
        Column("floor ms", _floor, ".4f", width=8, is_optional=True),
        Column("× floor", lambda one: _ratio(one.ms, _floor(one)), ".1f", face="page"),
        Column("bound", lambda one: one.cost.bound if one.cost else "", width=7, is_optional=True),
        Column("type", type_text, "", width=8),
        Column("kind", kind_text, fit="cut", width=8),
        Column("MFLOP", lambda one: one.cost.flops / 1e6 if one.cost else None, ",.2f", "page", width=8),
        Column("MB", lambda one: one.cost.bytes_moved / 1e6 if one.cost else None, ",.3f", "page", width=6),
    ]
    return table(
        f"batch {engine.batch}: {count_text(engine)}",
        columns,
        engine.layers,
        caption="spread: half of p10 to p90; floor: from the device's peaks; (type): requested",
        top=_TOP_LAYERS,
        sorted_by="ms",
        details=[_details(layer) for layer in engine.layers],
    )


def nodes_text(layer: ProfiledLayer) -> str:
    """The nodes except Q and DQ, or the first and last of many; the layer's name where no node is known.

    A reformat is labelled as one: it has the nodes of the layer that it feeds.
    """
    nodes_label = names_text(layer.working_nodes)
    if not nodes_label:
        return layer.name
    return f"reformat at {nodes_label}" if layer.is_reformat else nodes_label


def kind_text(layer: ProfiledLayer) -> str:
    """The backend's name of the layer kind; every reformat is called `reformat`."""
    return "reformat" if layer.is_reformat else layer.kind or "–"


def type_text(layer: ProfiledLayer) -> str:
    """The type that ran; the requested type in brackets where that is unknown."""
    return layer.dtype or (f"({layer.requested_dtype})" if layer.requested_dtype else "–")


def count_text(engine: EngineProfile) -> str:
    """How many layers, and their time."""
    return f"{len(engine.layers):,} layers, {engine.sum_ms:.3f} ms in all (medians)"


def hides_its_time(engine: EngineProfile) -> bool:
    """Whether the layer times say little: most lies in layers that hide their nodes."""
    return engine.coverage.time_opaque > _MOSTLY


def _details(layer: ProfiledLayer) -> list[tuple[str, str]]:
    """What the page unfolds below a layer, without names that its first cell already shows."""
    facts = [
        ("layer", layer.name),
        ("ONNX nodes", " + ".join(layer.onnx_nodes)),
        ("operators", ", ".join(layer.onnx_ops)),
        ("mapped by", layer.mapped_by),
        ("tactic", layer.tactic),
        ("requested type", layer.requested_dtype),
        ("weights", f"{layer.weights_count:,}" if layer.weights_count else ""),
        ("inputs", _tensors(layer.inputs)),
        ("outputs", _tensors(layer.outputs)),
    ]
    return [(what, fact) for what, fact in facts if fact and fact != nodes_text(layer)]


def _tensors(tensors: Sequence[EngineTensor]) -> str:
    """Each by its name, shape, and format or type, as far as they are known."""
    return "; ".join(
        " ".join(filter(None, (one.name, "×".join(map(str, one.shape or ())), one.format or one.dtype)))
        for one in tensors
    )


def _ratio(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of else None


def _spread(layer: ProfiledLayer) -> float | None:
    """Half of what lies between p10 and p90, as a share of the median."""
    if layer.low_ms is None or layer.high_ms is None:
        return None
    return _ratio((layer.high_ms - layer.low_ms) / 2, layer.ms)


def _floor(layer: ProfiledLayer) -> float | None:
    return layer.cost.floor_ms if layer.cost is not None else None


# ── charts ──────────────────────────────────────────────────────────────────────────────────────────────


def time_chart(engine: EngineProfile) -> Chart:
    """Time by kind of layer with the least that the device would need, or by what its kernels do.

    That where the layers would show is one that hides all.
    """
    parts: dict[tuple[str, str], float] = defaultdict(float)
    floors: dict[str, float] = defaultdict(float)
    kernels = engine.kernels if hides_its_time(engine) else None
    for row in kernels.rows if kernels is not None else ():
        parts[row.family, row.dtype or "–"] += row.own_ms
    for layer in engine.layers if kernels is None else ():
        parts[kind_text(layer), type_text(layer)] += layer.ms or 0.0
        if (floor_ms := _floor(layer)) is not None and not layer.is_reformat:
            floors[kind_text(layer)] += floor_ms
    totals: dict[str, float] = defaultdict(float)
    for (kind, _), ms in parts.items():
        totals[kind] += ms
    order = sorted((kind for kind in totals if totals[kind]), key=lambda kind: -totals[kind])
    if others := order[_KINDS:]:
        order = [*order[:_KINDS], "others"]
        totals["others"] = sum(totals[kind] for kind in others)
        floors["others"] = sum(floors[kind] for kind in others)
    rows: list[Datum] = [
        {"kind": "others" if kind in others else kind, "type": dtype, "ms": ms}
        for (kind, dtype), ms in parts.items()
        if ms
    ]
    known = {kind: floors[kind] for kind in order if floors.get(kind)}
    y = Channel("kind", "kind", more={"sort": order, "axis": {"labelLimit": 180}, "title": None})
    ms_axis = Channel("ms", "ms", ".4f", "time, ms (line: floor)" if known else "time, ms")
    colour = coloured_types(row["type"] for row in rows)
    layers = [marks("bar", y=y, x=ms_axis, color=colour)]
    if known:
        floor = Channel("floor", "floor, ms", ".4f", ms_axis.title)
        values = [{"kind": kind, "floor": value} for kind, value in known.items()]
        style: Spec = {"thickness": 3, "size": 18, "style": "overlay"}
        layers.append(marks("tick", values, [y, floor], y=y, x=floor, **style))
    said = {kind: f", floor {floor:.4f} ms" for kind, floor in known.items()}
    about = " against its floor" if known else " (floors unknown: the device's peaks are)"
    return chart(
        f"Where the time goes at batch {engine.batch}"
        + (about if kernels is None else ", by what kernels do"),
        rows,
        [y, colour, ms_axis],
        *layers,
        text=listed([f"{kind}: {totals[kind]:.4f} ms{said.get(kind, '')}" for kind in order]),
        height=70 + 22 * len(order),
    )


def roofline_charts(engine: EngineProfile, peaks: DevicePeaks | None) -> Iterator[Chart]:
    """The rate of each layer against the rate that its arithmetic intensity allows."""
    points = [point for layer in engine.layers if (point := _roofline_point(layer)) is not None]
    if not points:
        return
    points.sort(key=lambda point: -point["ms"])
    # The padding, in pixels, keeps the outermost points off the edge.
    x, y = (
        Channel(field, name, form, is_log=True, more={"scale": {"padding": 12}})
        for field, name, form in (("intensity", "FLOP per byte", ".1f"), ("rate", "GFLOP/s", ",.1f"))
    )
    ms = Channel("ms", "ms", ".4f", more={"legend": None, "scale": {"range": [20, 500]}})
    axes: Spec = {"x": x, "y": y, "color": coloured_types(point["type"] for point in points)}
    layers = marks("point", filled=True, opacity=0.75, **axes, size=ms)
    rows = [] if peaks is None else list(_roofs(points, peaks))
    roofs = [marks("line", rows, strokeWidth=1.5, **axes)] if rows else []
    says = [Channel("layer", "layer"), Channel("shown_type", "type"), Channel("bound", "bound by"), y, ms, x]
    title = "Layers by intensity and rate; areas are times"
    yield chart(title, points, says, *roofs, layers, height=380)


def _roofline_point(layer: ProfiledLayer) -> Datum | None:
    cost = layer.cost
    if not layer.ms or cost is None or not cost.flops or not cost.bytes_moved:
        return None
    return {
        "layer": nodes_text(layer),
        "type": layer.dtype or layer.requested_dtype,  # as for floors
        "shown_type": type_text(layer),
        "intensity": cost.flops / cost.bytes_moved,
        "rate": cost.flops / layer.ms * 1e-6,
        "ms": layer.ms,
        "bound": cost.bound,
    }


def _roofs(points: Sequence[Datum], peaks: DevicePeaks) -> Iterator[Datum]:
    """A line for each type that ran: bandwidth up to its ridge, then its peak rate."""
    ran = {point["type"] for point in points}
    bandwidth = peaks.bandwidth.value
    low, *_, high = sorted([point["intensity"] for point in points] * 2)
    for dtype, peak in peaks.flops.items():
        if dtype in ran:
            ridge = peak.value / bandwidth
            for x in (min(low, ridge), ridge, max(high, ridge)):
                yield {"type": dtype, "intensity": x, "rate": min(x * bandwidth, peak.value) / 1e9}
