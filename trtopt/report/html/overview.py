"""The two charts above the fold: latency and throughput by batch size, and time against its floor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtopt.measure.statistics.summaries import percentile
from trtopt.records import BenchPoint, Collected, EngineProfile, KernelReport
from trtopt.report.html.blocks import Block, Chart, Spec
from trtopt.report.html.charts import LEGEND, listed, name, quantity, tooltip_fields, vega_lite
from trtopt.report.html.colours import type_scale
from trtopt.report.html.deployment import deployment_of, p50_of, profiled, rate_of
from trtopt.report.html.latency import colours_of_batches
from trtopt.report.kernels import hides_its_time
from trtopt.report.names import kind_text, type_text

_KINDS = 7


def overview_charts(collected: Collected) -> list[Block]:
    """Latency and throughput over the batch size, and where the time goes against its floor."""
    deployed = deployment_of(collected)
    drawn: list[Block] = []
    if deployed is not None and len(deployed.points) > 1:
        drawn.append(_over_batches(deployed.points, colours_of_batches(collected)))
    engine = profiled(collected, deployed.point.batch if deployed is not None else None)
    if engine is not None and engine.kernels is not None and hides_its_time(engine):
        drawn.append(_by_kernels(engine.batch, engine.kernels))
    elif engine is not None and engine.sum_ms:
        drawn.append(_against_floor(engine))
    return drawn


def _over_batches(points: Sequence[BenchPoint], scale: Spec) -> Chart:
    """Throughput as bars in the batch sizes' colours, median latency as a line; both axes from zero."""
    rows = [
        {
            "batch": point.batch,
            "label": f"batch {point.batch}",
            "p50": p50_of(point),
            "p99": percentile(point.latency.samples.latency_ms, 99.0),
            "rate": rate_of(point),
        }
        for point in points
    ]
    x = {"field": "batch", "type": "ordinal", "title": "batch size, samples", "axis": {"labelAngle": 0}}
    tooltip = tooltip_fields(
        ("batch", "batch", "d"),
        ("p50", "p50 ms", ".3f"),
        ("p99", "p99 ms", ".3f"),
        ("rate", "samples/s", ",.0f"),
    )
    rate = {
        "mark": {"type": "bar", "opacity": 0.6, "width": {"band": 0.55}},
        "encoding": {
            "y": quantity("rate", "samples/s (bars)", axis={"orient": "right", "grid": False}),
            "color": name("label", scale=scale, legend=None),
        },
    }
    latency = {
        "layer": [
            {"mark": {"type": "line", "style": "overlay"}},
            {"mark": {"type": "point", "size": 45, "filled": True, "style": "overlay"}},
        ],
        "encoding": {"y": quantity("p50", "median, ms (line)", axis={"orient": "left"})},
    }
    text = listed(
        [f"batch {row['batch']}: {row['p50']:.3f} ms, {row['rate']:,.0f} samples/s" for row in rows]
    )
    spec = vega_lite(
        rows,
        encoding={"x": x, "tooltip": tooltip},
        layer=[rate, latency],
        resolve={"scale": {"y": "independent"}},
    )
    return Chart("Latency and throughput by batch size", spec, text, height=230)


def _by_kernels(batch: int, kernels: KernelReport) -> Chart:
    """Time by what the kernels do, coloured by type: what the layers would show is one that hides all."""
    families = [group.key for group in kernels.by_family]
    parts: dict[tuple[str, str], float] = {}
    for row in kernels.rows:
        key = (row.family, row.dtype or "–")
        parts[key] = parts.get(key, 0.0) + row.own_ms
    rows: list[dict[str, Any]] = [
        {"does": family, "type": dtype, "ms": ms} for (family, dtype), ms in parts.items()
    ]
    spec = vega_lite(
        rows,
        mark="bar",
        encoding={
            "y": name("does", sort=families, axis={"labelLimit": 150}),
            "x": quantity("ms", "time, ms"),
            "color": name("type", scale=type_scale(row["type"] for row in rows), legend=LEGEND),
            "tooltip": tooltip_fields(("does", "does", ""), ("type", "type", ""), ("ms", "ms", ".4f")),
        },
    )
    text = listed([f"{group.key}: {group.ms:.4f} ms" for group in kernels.by_family])
    title = f"Where the time goes at batch {batch}, by what kernels do"
    return Chart(title, spec, text, height=90 + 22 * len(families))


def _against_floor(engine: EngineProfile) -> Chart:
    """Time by kind of layer, coloured by type, with a mark at the least that the device would need."""
    kinds: dict[str, float] = {}
    floors: dict[str, float] = {}
    for layer in engine.layers:
        kinds[kind_text(layer)] = kinds.get(kind_text(layer), 0.0) + (layer.ms or 0.0)
    shown = sorted((kind for kind in kinds if kinds[kind]), key=lambda kind: -kinds[kind])
    shown, others = shown[:_KINDS], shown[_KINDS:]
    parts: dict[tuple[str, str], float] = {}
    for layer in engine.layers:
        kind = kind_text(layer) if kind_text(layer) in shown else "others"
        if layer.ms:
            parts[kind, type_text(layer)] = parts.get((kind, type_text(layer)), 0.0) + layer.ms
        if layer.cost is not None and layer.cost.floor_ms is not None and not layer.is_reformat:
            floors[kind] = floors.get(kind, 0.0) + layer.cost.floor_ms
    order = [*shown, *(["others"] if others else [])]
    rows: list[dict[str, Any]] = [
        {"kind": kind, "type": dtype, "ms": ms} for (kind, dtype), ms in parts.items()
    ]
    spec_floors: list[dict[str, Any]] = [
        {"kind": kind, "floor": floors[kind]} for kind in order if kind in floors
    ]
    y = name("kind", sort=order, axis={"labelLimit": 150})
    layers: list[dict[str, Any]] = [
        {
            "mark": "bar",
            "encoding": {
                "y": y,
                "x": quantity("ms", "time, ms" + (" (line: floor)" if spec_floors else "")),
                "color": name("type", scale=type_scale(row["type"] for row in rows), legend=LEGEND),
                "tooltip": tooltip_fields(("kind", "kind", ""), ("type", "type", ""), ("ms", "ms", ".4f")),
            },
        }
    ]
    if spec_floors:
        layers.append(
            {
                "data": {"values": spec_floors},
                "mark": {"type": "tick", "thickness": 3, "size": 18, "style": "overlay"},
                "encoding": {
                    "y": y,
                    "x": quantity("floor", "time, ms (line: floor)"),
                    "tooltip": tooltip_fields(("kind", "kind", ""), ("floor", "floor, ms", ".4f")),
                },
            }
        )
    about = "against its floor" if spec_floors else "(floors unknown: the device's peaks are)"
    floor_text = {row["kind"]: f", floor {row['floor']:.4f} ms" for row in spec_floors}
    totals = {kind: sum(ms for (one, _), ms in parts.items() if one == kind) for kind in order}
    text = listed([f"{kind}: {totals[kind]:.4f} ms{floor_text.get(kind, '')}" for kind in order])
    title = f"Where the time goes at batch {engine.batch} {about}"
    return Chart(title, vega_lite(rows, layer=layers), text, height=90 + 22 * len(order))
