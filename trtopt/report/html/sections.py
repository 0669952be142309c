"""The sections of a page: the views of the folder's records, with charts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from trtopt.measure.statistics.summaries import percentile
from trtopt.records import (
    BenchPoint,
    BenchReport,
    Collected,
    DevicePeaks,
    EngineDifference,
    EngineProfile,
    Environment,
    LayerGroup,
    Manifest,
    MemoryTimeline,
    ProfiledLayer,
    ProfileReport,
    TypedTensor,
)
from trtopt.report.bench import bench_view
from trtopt.report.build import engines_table
from trtopt.report.html.charts import (
    LEGEND,
    bars,
    batch_scale,
    curves_over_batches,
    histogram,
    lines_over,
    listed,
    log,
    name,
    quantity,
    shares,
    tooltip_fields,
    type_scale,
    vega_lite,
)
from trtopt.report.html.deployment import rate_of, sampled
from trtopt.report.html.page import Block, Chart, Command, Missing, Section, Spec, panel
from trtopt.report.html.vega import kernel_timeline, timeline, treemap
from trtopt.report.kernels import kernel_groups, kernel_lines, kernels_table
from trtopt.report.names import nodes_text, type_text
from trtopt.report.precision import check_view, verdict_view
from trtopt.report.profile import (
    build_memory_lines,
    coverage_lines,
    difference_tables,
    fusion_blocks,
    layers_table,
    memory_blocks,
    peak_lines,
    phases_table,
    receipt_blocks,
    roofline_lines,
    total_lines,
)
from trtopt.report.tuning import gain_line, ledger_table, separate_runs_line
from trtopt.report.view import Column, Lines, Table, table

_CURVES = (
    ("Median latency", "p50", "ms"),
    ("p99 latency", "p99", "ms"),
    ("Throughput", "samples_per_s", "samples/s"),
    ("Time of one sample at the best rate", "us", "µs"),
)
_PERCENTILES = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9)
_TAILS = (0.0, 50.0, 90.0, 99.0, 99.9)
_GROUPS = 12
_POINTS = 2000
_MIB = 2**20
_X, _Y = "FLOP per byte", "GFLOP/s"
_AXES = {
    # The padding, in pixels, keeps the outermost points off the edge.
    "x": quantity("intensity", f"{_X} (log scale)", **log(padding=12)),
    "y": quantity("rate", f"{_Y} (log scale)", **log(padding=12)),
}
_NO_PEAKS = "The device's peaks are unknown: the chart has no roof, and layers have no floors."


# ── latency ─────────────────────────────────────────────────────────────────────────────────────────────


def latency_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each result file."""
    scale = colours_of_batches(collected)
    panels = [
        panel(result_name(file, report), _latency(report, scale))
        for file, report in collected.results.items()
    ]
    return Section("latency", "Latency distribution", panels) if panels else Missing("latency", command)


def _latency(report: BenchReport, scale: Spec) -> Iterator[Block]:
    latencies, *others = bench_view(report).blocks
    yield latencies
    points = sampled(report)
    if points:
        yield _percentiles(points, scale)
    for point in points:
        latency = point.latency.samples.latency_ms
        marks = {
            f"p{p:g}": value for p in (50.0, 90.0, 99.0) if (value := percentile(latency, p)) is not None
        }
        title = f"Batch {point.batch}: latency of {len(latency):,} queries"
        yield histogram(title, latency, marks, colour_of(scale, point.batch))
    yield from others


def colours_of_batches(collected: Collected) -> Spec:
    """One colour per batch size of the folder, for all charts of the page."""
    measured = [point.batch for report in collected.results.values() for point in report.points]
    profiled = [engine.batch for report in collected.profiles.values() for engine in report.engines]
    return batch_scale([*measured, *profiled])


def colour_of(scale: Spec, batch: int) -> str:
    """A batch size's colour on a scale of `colours_of_batches`."""
    colour: str = scale["range"][scale["domain"].index(f"batch {batch}")]
    return colour


def result_name(file: str, report: BenchReport) -> str:
    """A result file's name on the page."""
    return f"{file}: {report.points[0].latency.contract.name}, {report.environment.backend.name}"


def _tail(p: float) -> float:
    """A percentile's position on an axis that gives each further 9 the same length."""
    return -math.log10(1 - p / 100)


def _percentiles(points: Sequence[BenchPoint], scale: Spec) -> Chart:
    rows = [
        {"batch": f"batch {point.batch}", "p": p, "tail": _tail(p), "ms": value}
        for point in points
        for p in _PERCENTILES
        if (value := percentile(point.latency.samples.latency_ms, p)) is not None
    ]
    labels = " : ".join(f"datum.value < {_tail(p) + 0.01:.3f} ? 'p{p:g}'" for p in _TAILS) + " : ''"
    axis = {"values": [_tail(p) for p in _TAILS], "labelExpr": labels}
    return lines_over(
        "Latency by percentile",
        listed([f"{row['batch']}, p{row['p']:g}: {row['ms']:.3f} ms" for row in rows if row["p"] in _TAILS]),
        rows,
        quantity("tail", "percentile (each further 9 takes the same length)", axis=axis),
        quantity("ms", "latency, ms (log scale)", **log()),
        name("batch", sort=None, scale=scale, legend=LEGEND),
        tooltip_fields(("batch", "engine", ""), ("p", "percentile", "g"), ("ms", "ms", ".4f")),
    )


# ── batch curves ────────────────────────────────────────────────────────────────────────────────────────
def batch_section(collected: Collected, command: str) -> Section | Missing:
    """Every result file as a line over the batch size."""
    rows = [
        {"batch": point.batch, "series": result_name(file, report), **_rates(point)}
        for file, report in collected.results.items()
        for point in sampled(report)
    ]
    charts = list(curves_over_batches(rows, _CURVES, {**LEGEND, "columns": 1}))
    title = "Curves over the batch size"
    return Section("batches", title, [panel("", charts)]) if charts else Missing(title.lower(), command)


def _rates(point: BenchPoint) -> dict[str, float | None]:
    latency, rate = point.latency.samples.latency_ms, rate_of(point)
    return {
        "p50": percentile(latency, 50.0),
        "p99": percentile(latency, 99.0),
        "samples_per_s": rate,
        "us": 1e6 / rate if rate else None,
    }


# ── profiled engines ────────────────────────────────────────────────────────────────────────────────────


def engine_panels(collected: Collected) -> list[tuple[str, ProfileReport, EngineProfile]]:
    """Every profiled engine with its name on the page."""
    multi_profile = len(collected.profiles) > 1
    return [
        (f"batch {engine.batch}" + (f" ({file})" if multi_profile else ""), report, engine)
        for file, report in collected.profiles.items()
        for engine in report.engines
    ]


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


def _engine_section(
    id: str,
    title: str,
    collected: Collected,
    command: str,
    blocks: Callable[[EngineProfile], Iterable[Block]],
) -> Section | Missing:
    """A panel for each engine that has something to show."""
    found = [(label, list(blocks(engine))) for label, _, engine in engine_panels(collected)]
    panels = [panel(label, shown) for label, shown in found if shown]
    return Section(id, title, panels) if panels else Missing(id, command)


def layers_section(collected: Collected, command: str) -> Section | Missing:
    """Layers, as areas, over time, in groups and one by one."""
    return _engine_section("layers", "Layers", collected, command, _layers)


def _layers(engine: EngineProfile) -> Iterator[Block]:
    if engine.sum_ms:
        yield Lines([*total_lines(engine), *coverage_lines(engine.coverage)])
        yield treemap(engine)
        yield timeline(engine)
        yield bars("Time by kind", largest(engine.by_kind))
        types = largest(engine.by_dtype)
        yield bars(
            "Time by type", types, name("key", scale=type_scale(row["key"] for row in types), legend=None)
        )
        yield bars("Time by ONNX node, with the reformats that serve it", largest(engine.by_node))
        yield bars("Time by module path", largest(engine.by_module))
    yield layers_table(engine)


def kernels_section(collected: Collected, command: str) -> Section | Missing:
    """Kernels, over time, in groups and one by one."""
    return _engine_section("kernels", "Kernels", collected, command, _kernels)


def _kernels(engine: EngineProfile) -> Iterator[Block]:
    if (kernels := engine.kernels) is not None:
        yield Lines(kernel_lines(kernels))
        yield kernel_timeline(kernels)
        yield from kernel_groups(kernels)
        yield kernels_table(kernels)


def fusion_section(collected: Collected, command: str) -> Section | Missing:
    """Fusions, and why others did not happen; a profile of ONNX nodes has none."""

    def blocks(engine: EngineProfile) -> Iterable[Block]:
        return fusion_blocks(engine) if engine.sum_ms else ()

    return _engine_section("fusion", "Fusion", collected, command, blocks)


def precision_section(collected: Collected, command: str) -> Section | Missing:
    """The precision receipt of each engine."""
    return _engine_section("precision", "Precision receipt", collected, command, _receipt)


def _receipt(engine: EngineProfile) -> Iterator[Block]:
    receipt = engine.receipt
    sides = {
        "weights requested": receipt.weights_requested,
        "weights ran": receipt.weights_ran,
        "time ran": receipt.time_ran or {},
    }
    rows = [
        {"what": side, "type": dtype, "share": share}
        for side, parts in sides.items()
        for dtype, share in parts.items()
    ]
    if rows:
        yield shares("Requested types and types that ran", rows)
    yield from receipt_blocks(receipt)


def difference_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each difference from an earlier profile."""
    differences = [one for report in collected.profiles.values() for one in report.differences]
    title = "Difference from an earlier profile"
    return differences_section(title, differences) or Missing(title.lower(), command)


def differences_section(title: str, differences: Sequence[EngineDifference]) -> Section | None:
    """None: there are none."""
    panels = [panel(f"{one.a} → {one.b}", difference_tables(one)) for one in differences]
    return Section("difference", title, panels) if panels else None


# ── the roofline ────────────────────────────────────────────────────────────────────────────────────────


def roofline_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each engine: the rate of each layer against the rate its arithmetic intensity allows."""
    panels = [
        panel(label, _roofline(report, engine, points))
        for label, report, engine in engine_panels(collected)
        if (points := [point for layer in engine.layers if (point := _roofline_point(layer)) is not None])
    ]
    return Section("roofline", "Roofline", panels) if panels else Missing("roofline", command)


def _roofline(
    report: ProfileReport, engine: EngineProfile, points: Sequence[dict[str, Any]]
) -> Iterator[Block]:
    yield Lines(roofline_lines(engine))
    yield _roofline_chart(points, report.peaks)
    yield Lines(peak_lines(report.peaks) or [_NO_PEAKS])


def _roofline_point(layer: ProfiledLayer) -> dict[str, Any] | None:
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


def _roofline_chart(points: Sequence[dict[str, Any]], peaks: DevicePeaks | None) -> Chart:
    colour = name("type", scale=type_scale(point["type"] for point in points), legend=LEGEND)
    layers = {
        "mark": {"type": "point", "filled": True, "opacity": 0.75},
        "encoding": {
            **_AXES,
            "color": colour,
            "size": quantity("ms", "ms", legend=None, scale={"range": [20, 500]}),
            "tooltip": tooltip_fields(
                ("layer", "layer", ""),
                ("shown_type", "type", ""),
                ("ms", "ms", ".4f"),
                ("intensity", _X, ".1f"),
                ("rate", _Y, ",.1f"),
                ("bound", "bound by", ""),
            ),
        },
    }
    roofs = [] if peaks is None else _roofs(points, peaks)
    drawn = {
        "data": {"values": roofs},
        "mark": {"type": "line", "strokeWidth": 1.5},
        "encoding": {**_AXES, "color": colour},
    }
    spec = vega_lite(points, layer=[drawn, layers] if roofs else [layers])
    slowest = sorted(points, key=lambda point: -point["ms"])
    text = listed([f"{point['layer']}: {point['rate']:,.4g} {_Y}, {point['ms']:.4f} ms" for point in slowest])
    return Chart("Layers by intensity and rate; areas are times", spec, text, height=380)


def _roofs(points: Sequence[dict[str, Any]], peaks: DevicePeaks) -> list[dict[str, Any]]:
    """A line for each type that ran: bandwidth up to its ridge, then its peak rate."""
    ran = {point["type"] for point in points}
    bandwidth = peaks.bandwidth.value
    low = min(point["intensity"] for point in points)
    high = max(point["intensity"] for point in points)
    rows = []
    for dtype, peak in peaks.flops.items():
        if dtype not in ran:
            continue
        ridge = peak.value / bandwidth
        for x in (min(low, ridge), ridge, max(high, ridge)):
            rows.append({"type": dtype, "intensity": x, "rate": min(x * bandwidth, peak.value) / 1e9})
    return rows


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────


def memory_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each engine whose allocations were traced, at run time or while it was built."""
    return _engine_section("memory", "Memory", collected, command, _memory)


def _memory(engine: EngineProfile) -> Iterator[Block]:
    memory, build = engine.memory, engine.build_memory
    if memory is not None:
        summary, *tables = memory_blocks(memory)
        yield summary
        yield _memory_chart("Device memory allocated by TensorRT over time", memory)
        yield from tables
    if build is not None:
        yield Lines(build_memory_lines(build))
        yield _memory_chart("Device memory allocated by the builder over time", build)
        yield phases_table(build, "The build by phase")


def _memory_chart(title: str, memory: MemoryTimeline) -> Chart:
    rows = [
        {"at": memory.at_ms[index], "mib": memory.live_bytes[index] / _MIB}
        for index in thinned(memory.live_bytes, _POINTS)
    ]
    peak = [{"at": memory.peak_at_ms, "mib": memory.peak_bytes / _MIB, "phase": memory.peak_phase}]
    x, y = quantity("at", "time since the pass began, ms"), quantity("mib", "live, MiB")
    curve = {
        "mark": {"type": "area", "interpolate": "step-after", "line": True, "opacity": 0.35},
        "encoding": {"tooltip": tooltip_fields(("at", "at ms", ".2f"), ("mib", "live MiB", ".3f"))},
    }
    point = {
        "data": {"values": peak},
        "layer": [
            {"mark": {"type": "point", "filled": True, "size": 60, "color": "#d62728"}},
            {
                "mark": {"type": "text", "align": "left", "dx": 8, "baseline": "middle"},
                "encoding": {"text": {"field": "phase"}},
            },
        ],
        "encoding": {
            "tooltip": tooltip_fields(
                ("phase", "peak in", ""), ("at", "at ms", ".2f"), ("mib", "live MiB", ".3f")
            )
        },
    }
    spec = vega_lite(rows, encoding={"x": x, "y": y}, layer=[curve, point])
    text = (
        f"peak of {memory.peak_bytes / _MIB:.2f} MiB in {memory.peak_phase}, after {memory.peak_at_ms:.1f} ms"
    )
    return Chart(title, spec, text)


def thinned(values: Sequence[int], limit: int) -> list[int]:
    """Indices of at most `limit` values, or somewhat fewer, that keep a curve's shape.

    Each interval keeps its lowest, its highest and its last value.
    """
    if len(values) <= limit:
        return list(range(len(values)))
    array, kept = np.asarray(values), set[int]()
    for stretch in np.array_split(np.arange(len(values)), limit // 3):
        part = array[stretch]
        kept |= {int(stretch[part.argmin()]), int(stretch[part.argmax()]), int(stretch[-1])}
    return sorted(kept)


# ── accuracy and tuning ─────────────────────────────────────────────────────────────────────────────────


def checks_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each check."""
    panels = [panel(file, check_view(check).blocks) for file, check in collected.checks.items()]
    return (
        Section("checks", "Checks against the reference", panels) if panels else Missing("accuracy", command)
    )


def selection_section(collected: Collected) -> Section | None:
    """The precision selection of the build; None: none was requested, so nothing is missing."""
    verdict = collected.manifest.verdict if collected.manifest is not None else None
    if verdict is None:
        return None
    return Section("selection", "Precision selection", [panel("", verdict_view(verdict).blocks)])


def tuning_section(collected: Collected) -> Section | None:
    """The ledger; None: the build was not tuned, so nothing is missing."""
    ledger = collected.ledger
    if ledger is None:
        return None
    blocks: list[Block] = [Lines([gain_line(ledger), separate_runs_line(ledger)]), ledger_table(ledger)]
    return Section("tuning", "Tuning", [panel("", blocks)])


# ── origin ──────────────────────────────────────────────────────────────────────────────────────────────


def facts_table(title: str, facts: dict[str, str]) -> Table:
    """What is known, by name."""
    columns: list[Column[tuple[str, str]]] = [
        Column("what", lambda pair: pair[0]),
        Column("found", lambda pair: pair[1]),
    ]
    return table(title, columns, facts.items())


def machines_section(collected: Collected) -> Section | None:
    """Each file's machine, grouped by machine; None where no file names one."""
    tables = [
        facts_table(f"Where {', '.join(files)} was made", machine_facts(environment))
        for environment, files in _machines(collected)
    ]
    return Section("machines", "Machine and versions", [panel("", tables)]) if tables else None


def build_section(collected: Collected, command: str) -> Section | Missing:
    """The engines of the folder, their builder's settings and the graph."""
    if collected.manifest is None:
        return Missing("build", command)
    return Section("build", "Build", [panel("", _build(collected.manifest))])


def _build(manifest: Manifest) -> Iterator[Block]:
    first = manifest.engines[0]
    yield engines_table(manifest, f"Engines, built by {first.plan.backend} on {first.device.name}")
    tensors: list[Column[TypedTensor]] = [
        Column("tensor", lambda one: one.name),
        Column("role", lambda one: one.role),
        Column("type", lambda one: one.dtype),
        Column("layout", lambda one: one.layout),
        Column("type in the model", lambda one: one.model_dtype),
        Column("scale", lambda one: one.scale, ".6f"),
        Column("mean and deviation in the graph", _normalisation),
    ]
    yield table("Typed inputs and outputs", tensors, manifest.io)
    yield facts_table("Builder settings", first.builder_config)
    lines = [f"model {manifest.onnx.path}, SHA-256 {manifest.onnx.sha256}"]
    rewrite = manifest.rewrite
    if rewrite is not None:
        applied = ", ".join(f"{rule} {count}" for rule, count in rewrite.applied.items()) or "no rule applied"
        lines.append(f"rewritten: {rewrite.nodes_before} → {rewrite.nodes_after} nodes ({applied})")
    yield Lines([*lines, *manifest.notes])


def _normalisation(one: TypedTensor) -> str:
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (one.mean, one.std))
    return f"({mean}), ({std})" if one.mean else ""


def _machines(collected: Collected) -> list[tuple[Environment, list[str]]]:
    machines: list[tuple[Environment, list[str]]] = []
    for file, report in collected.reports.items():
        if report.environment is None:
            continue
        same = next((files for environment, files in machines if environment == report.environment), None)
        if same is None:
            machines.append((report.environment, [file]))
        else:
            same.append(file)
    return machines


def machine_facts(environment: Environment) -> dict[str, str]:
    """What is known of a machine and its versions, by name."""
    device = environment.device
    memory = f"{device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes else None
    facts = {
        "device": device.name,
        "compute capability": device.compute_capability,
        "device memory": memory,
        "driver": device.driver,
        "CUDA": device.cuda,
        "CUDA binding": device.binding,
        "device's UUID": device.uuid,
        "backend": str(environment.backend),
        "trtopt": environment.trtopt + (f", {environment.git_revision}" if environment.git_revision else ""),
        "Python": environment.python,
        "platform": environment.platform,
        "CPU": environment.cpu,
        "cores allowed": ", ".join(map(str, environment.cpus)),
    }
    return {what: fact for what, fact in facts.items() if fact}


def commands_of(collected: Collected) -> list[Command]:
    """The commands as they were typed, in the usual order of work."""
    manifest = collected.manifest
    made = [("engines", manifest.argv, manifest.created)] if manifest is not None else []
    made += [(file, report.argv, report.created) for file, report in collected.reports.items()]
    made += [(file, check.argv, check.created) for file, check in collected.checks.items()]
    return [Command(typed(argv), f"{what}, {date_text(created)}") for what, argv, created in made if argv]


def date_text(created: str) -> str:
    """A record's time of day to the minute: `2026-01-31 12:00 UTC`."""
    return f"{created[:10]} {created[11:16]} UTC"


def typed(argv: Sequence[str]) -> str:
    """A command line for a shell, however the program was started."""
    program, *rest = argv
    is_trtopt = PurePath(program).name in ("trtopt", "__main__.py")
    return shlex.join(["trtopt" if is_trtopt else program, *rest])


def file_notes(collected: Collected) -> list[str]:
    """What the files themselves note, each once, and what of the folder is not on the page."""
    notes: dict[str, list[str]] = {}
    for file, report in collected.reports.items():
        for note in report.notes:
            notes.setdefault(note, []).append(file)
    omitted = [f"not on this page: {file}, {reason}" for file, reason in collected.left_out.items()]
    return [*(f"{', '.join(files)}: {note}" for note, files in notes.items()), *omitted]
