"""The page of one folder: a section for each of a reader's questions; what lacks data is only listed."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath

import msgspec
import numpy as np

from trtopt.measure.statistics.summaries import percentile
from trtopt.records import (
    BenchPoint,
    BenchReport,
    CheckReport,
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
    SweepReport,
)
from trtopt.report.bench import bench_view, trust_lines
from trtopt.report.build import engines_table
from trtopt.report.html.answer import (
    Commands,
    colours_of_batches,
    date_text,
    deployment_of,
    facts,
    headline,
    mark_of,
    model_name,
    next_steps,
    overview_charts,
    p50_of,
    p99_of,
    profiled,
    ran_on_stand_in,
    rate_of,
    reasons,
    sampled,
    warnings,
)
from trtopt.report.html.charts import (
    LEGEND,
    Channel,
    Row,
    chart,
    coloured,
    coloured_types,
    curves_over_batches,
    histogram,
    kernel_timeline,
    listed,
    marks,
    shares,
    timeline,
    times,
    treemap,
)
from trtopt.report.html.page import Block, Chart, Figure, Page, Question, Section, Spec, with_data
from trtopt.report.kernels import kernel_groups, kernel_lines, kernel_types_line, kernels_table, top_lines
from trtopt.report.precision import check_view, verdict_view
from trtopt.report.profile import (
    build_memory_lines,
    coverage_lines,
    difference_tables,
    fusion_blocks,
    layers_table,
    memory_blocks,
    nodes_text,
    peak_lines,
    phases_table,
    receipt_blocks,
    receipt_lines,
    roofline_lines,
    total_lines,
    type_text,
)
from trtopt.report.tuning import gain_line, ledger_table, separate_runs_line
from trtopt.report.view import Column, Lines, Note, Severity, Table, View, grouped, table

_CURVES = (
    ("Median latency", "p50", "ms"),
    ("p99 latency", "p99", "ms"),
    ("Throughput", "samples_per_s", "samples/s"),
)
_PERCENTILES = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9)
_TAILS = (0.0, 50.0, 90.0, 99.0, 99.9)
_GROUPS = 12
_POINTS = 2000
_MIB = 2**20
_Made = BenchReport | ProfileReport | CheckReport | Manifest | SweepReport
_NO_PEAKS = "The device's peaks are unknown: the chart has no roof, and layers have no floors."


def report_page(collected: Collected, argv: Sequence[str] = (), *, beside: Collected | None = None) -> Page:
    """Everything of one folder; `argv` is the command that makes the page.

    `beside` is the other folder on it, whose batch sizes have colours, too.
    """
    colours = colours_of_batches([collected] if beside is None else [collected, beside])
    deployed = deployment_of(collected)
    engine = profiled(collected, deployed.point.batch if deployed is not None else None)
    figures: list[Figure] = []
    why: list[str] = []
    if deployed is not None:
        figures, why = list(headline(collected, deployed)), list(reasons(collected, deployed))
    elif engine is not None and engine.sum_ms:
        figures = [Figure(f"layers at batch {engine.batch}", f"{engine.sum_ms:.3f}", unit="ms")]
    questions, missing = with_data(_questions(collected, engine, colours, argv))
    return Page(
        title=model_name(collected),
        facts=facts(collected),
        mark=mark_of(collected),
        figures=figures,
        answer=[Lines(why), Lines(warnings(collected), are_warnings=True)],
        steps=next_steps(collected, deployed, engine),
        charts=list(overview_charts(deployed, engine, colours)),
        questions=questions,
        missing=missing,
    )


def _questions(
    collected: Collected, engine: EngineProfile | None, colours: Spec, argv: Sequence[str]
) -> Iterator[Question]:
    commands = Commands(collected)
    again = commands.profile(_result_with_layers(collected))
    build = f"trtopt build {commands.model} -o ENGINES --batch 1,8,32"
    on_gpu = not _is_measured_on_cpu(collected)
    kernels, memory = (commands.profile(option) if on_gpu else "" for option in ("--kernels", "--memory"))
    check = f"trtopt check {commands.folder} --against {commands.model} {commands.into('check.json')}"
    difference = commands.profile("--against EARLIER")
    manifest = collected.manifest
    verdict = manifest.verdict if manifest is not None else None

    def inside(
        id: str, title: str, command: str, blocks: Callable[[EngineProfile], Iterable[Block]]
    ) -> Section:
        """A panel for each engine."""
        panels = {label: list(blocks(one)) for label, _, one in _engine_panels(collected)}
        return Section(id, title, panels, command)

    measured = {_result_name(file, report): report for file, report in collected.results.items()}
    views = {name: bench_view(report) for name, report in measured.items()}
    yield Question(
        "fast",
        "How fast is it?",
        [_titled(name, view) for name, view in views.items()],
        [
            Section(
                "latency",
                "Latency distribution",
                {
                    name: [*_latency(measured[name], colours), *view.blocks[1:]]
                    for name, view in views.items()
                },
                commands.bench(),
            ),
            Section(
                "batches",
                "Curves over the batch size",
                {"": _curves(measured)},
                "" if commands.has_fixed_batch else build,
            ),
        ],
    )
    earlier = (one for report in collected.profiles.values() for one in report.differences)
    roofline = {label: list(_roofline(report, one)) for label, report, one in _engine_panels(collected)}
    yield Question(
        "why",
        "Why is it not faster?",
        [Lines(_why(collected, engine))],
        [
            inside("layers", "Layers", again, _layers),
            inside("kernels", "Kernels", kernels, _kernels),
            inside("fusion", "Fusion", again, lambda one: fusion_blocks(one) if one.sum_ms else ()),
            Section("roofline", "Roofline", roofline, again),
            inside("memory", "Memory", memory, _memory),
            Section(
                "difference", "Difference from an earlier profile", difference_panels(earlier), difference
            ),
        ],
    )
    checks = {file: check_view(one) for file, one in collected.checks.items()}
    selection = {} if verdict is None else {"": verdict_view(verdict)}
    yield Question(
        "accurate",
        "Is it accurate?",
        [
            Lines(
                [
                    *_sentences([*checks.values(), *selection.values()]),
                    *_rewritten(collected),
                    *_receipts(collected),
                ]
            )
        ],
        [
            Section(
                "checks",
                "Checks against the reference",
                {file: view.blocks for file, view in checks.items()},
                check if manifest is not None else "",
            ),
            Section(
                "selection", "Precision selection", {label: view.blocks for label, view in selection.items()}
            ),
            inside("precision", "Precision receipt", again, _receipt),
        ],
    )
    yield Question("trust", "Can I trust it?", [Lines(list(_trust(collected)))])
    made = {**({} if manifest is None else {"engines": manifest}), **collected.reports, **collected.checks}
    yield Question(
        "made",
        "How was it made?",
        [commands_of(made, argv)],
        [
            Section("tuning", "Tuning", {"": list(_tuning(collected))}),
            Section("machines", "Machine and versions", {"": list(_machines(collected))}),
            Section("build", "Build", {"": [] if manifest is None else list(build_blocks(manifest))}, build),
        ],
    )


def _result_name(file: str, report: BenchReport) -> str:
    """A result file's name on the page."""
    return f"{file}: {report.points[0].latency.contract.name}, {report.environment.backend.name}"


def _titled(name: str, view: View) -> Table:
    """The first table of a view, by another name."""
    first = view.blocks[0]
    assert isinstance(first, Table)
    return replace(first, title=name)


def _is_measured_on_cpu(collected: Collected) -> bool:
    """Where allocations cannot be traced."""
    environments = [report.environment for report in collected.reports.values() if report.environment]
    return any(one.device.kind == "cpu" for one in environments) or ran_on_stand_in(collected)


def _result_with_layers(collected: Collected) -> str:
    """The `--result` flag for a result file with layer times, which need not be measured again."""
    for file, report in collected.results.items():
        if all(point.layers is not None for point in report.points):
            return f"--result {shlex.quote(f'{collected.folder}/{file}')}"
    return ""


# ── how fast ────────────────────────────────────────────────────────────────────────────────────────────


def _latency(report: BenchReport, scale: Spec) -> Iterator[Block]:
    """The percentiles of all batch sizes, and how often each latency was measured."""
    points = sampled(report)
    if points:
        yield _percentiles(points, scale)
    for point in points:
        latency = point.latency.samples.latency_ms
        named = {f"p{p:g}": value for p in (50, 90, 99) if (value := percentile(latency, p)) is not None}
        title = f"Batch {point.batch}: latency of {len(latency):,} queries"
        colour = scale["range"][scale["domain"].index(f"batch {point.batch}")]
        yield histogram(title, latency, named, colour)


def _tail(p: float) -> float:
    """A percentile's position on an axis that gives each further 9 the same length."""
    return -math.log10(1 - p / 100)


def _percentiles(points: Sequence[BenchPoint], scale: Spec) -> Chart:
    rows = [
        {"batch": f"batch {point.batch}", "p": f"p{p:g}", "tail": _tail(p), "ms": value}
        for point in points
        for p in _PERCENTILES
        if (value := percentile(point.latency.samples.latency_ms, p)) is not None
    ]
    labels = " : ".join(f"datum.value < {_tail(p) + 0.01:.3f} ? 'p{p:g}'" for p in _TAILS) + " : ''"
    axis = {"values": [_tail(p) for p in _TAILS], "labelExpr": labels}
    title = "percentile (each further 9 takes the same length)"
    tail = Channel("tail", form=".2f", title=title, more={"axis": axis})
    ms = Channel("ms", "ms", ".4f", "latency, ms", is_log=True)
    batch = coloured("batch", "batch", sort=None, scale=scale)
    lines = marks("line", point=True, x=tail, y=ms, color=batch)
    named = {f"p{p:g}" for p in _TAILS}
    text = listed([f"{row['batch']}, {row['p']}: {row['ms']:.4f} ms" for row in rows if row["p"] in named])
    says = [batch, Channel("p", "percentile"), ms]
    return chart("Latency by percentile", rows, says, lines, text=text, is_small=True)


def _curves(measured: Mapping[str, BenchReport]) -> list[Chart]:
    """Every result file as a line over the batch size."""
    rows = [
        {
            "batch": point.batch,
            "series": name,
            "p50": p50_of(point),
            "p99": p99_of(point),
            "samples_per_s": rate_of(point),
        }
        for name, report in measured.items()
        for point in sampled(report)
    ]
    return list(curves_over_batches(rows, _CURVES, legend={**LEGEND, "columns": 1}))


# ── why not faster ──────────────────────────────────────────────────────────────────────────────────────


def _engine_panels(collected: Collected) -> list[tuple[str, ProfileReport, EngineProfile]]:
    """Every profiled engine with its name on the page."""
    several = len(collected.profiles) > 1
    return [
        (f"batch {engine.batch}" + (f" ({file})" if several else ""), report, engine)
        for file, report in collected.profiles.items()
        for engine in report.engines
    ]


def _why(collected: Collected, engine: EngineProfile | None) -> list[str]:
    """Of the engine that goes with the deployed batch size: its floor, and what is unknown."""
    lines = []
    if engine is not None:
        found = [*roofline_lines(engine), *(top_lines(engine.kernels) if engine.kernels is not None else ())]
        lines += [f"batch {engine.batch}: {line.strip()}" for line in found]
    missing = dict.fromkeys(text for report in collected.profiles.values() for text in report.missing)
    return [*lines, *(f"not known: {text}" for text in missing)]


def _layers(engine: EngineProfile) -> Iterator[Block]:
    """As areas, over time, in groups and one by one."""
    if engine.sum_ms:
        yield Lines([*total_lines(engine), *coverage_lines(engine.coverage)])
        yield treemap(engine)
        yield timeline(engine)
        yield _groups("Time by kind", "kind", engine.by_kind)
        colour = coloured_types((group.key for group in engine.by_dtype), legend=None)
        yield _groups("Time by type", "type", engine.by_dtype, colour)
        yield _groups("Time by ONNX node, with the reformats that serve it", "node", engine.by_node)
        yield _groups("Time by module path", "module", engine.by_module)
    yield layers_table(engine)


def _groups(title: str, what: str, groups: Sequence[LayerGroup], colour: Channel | None = None) -> Chart:
    """The largest groups, and all others as one."""
    rows: list[Row] = [
        {what: one.key, "ms": one.ms, "share": one.share, "layers": one.layers} for one in groups
    ]
    rest = rows[_GROUPS:]
    if rest:
        sums = {figure: sum(row[figure] for row in rest) for figure in ("ms", "share", "layers")}
        rows = [*rows[:_GROUPS], {what: f"{len(rest)} others", **sums}]
    return times(title, rows, what, [row[what] for row in rows], colour, is_small=True)


def _kernels(engine: EngineProfile) -> Iterator[Block]:
    """Over time, in groups and one by one."""
    if (kernels := engine.kernels) is not None:
        yield Lines(kernel_lines(kernels))
        yield kernel_timeline(kernels)
        yield from kernel_groups(kernels)
        yield kernels_table(kernels)


def difference_panels(differences: Iterable[EngineDifference]) -> dict[str, list[Table]]:
    """One for two engines, whatever the number of batch sizes at which they were profiled."""
    panels: dict[str, list[Table]] = {}
    for one in differences:
        panels.setdefault(f"{one.a} → {one.b}", []).extend(difference_tables(one))
    return panels


def _roofline(report: ProfileReport, engine: EngineProfile) -> Iterator[Block]:
    """The rate of each layer against the rate that its arithmetic intensity allows."""
    points = [point for layer in engine.layers if (point := _roofline_point(layer)) is not None]
    if points:
        points.sort(key=lambda point: -point["ms"])
        yield Lines(roofline_lines(engine))
        yield _roofline_chart(points, report.peaks)
        yield Lines(peak_lines(report.peaks) or [_NO_PEAKS])


def _roofline_point(layer: ProfiledLayer) -> Row | None:
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


def _roofline_chart(points: Sequence[Row], peaks: DevicePeaks | None) -> Chart:
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
    return chart(title, points, says, *roofs, layers, height=380)


def _roofs(points: Sequence[Row], peaks: DevicePeaks) -> Iterator[Row]:
    """A line for each type that ran: bandwidth up to its ridge, then its peak rate."""
    ran = {point["type"] for point in points}
    bandwidth = peaks.bandwidth.value
    low, *_, high = sorted([point["intensity"] for point in points] * 2)
    for dtype, peak in peaks.flops.items():
        if dtype in ran:
            ridge = peak.value / bandwidth
            for x in (min(low, ridge), ridge, max(high, ridge)):
                yield {"type": dtype, "intensity": x, "rate": min(x * bandwidth, peak.value) / 1e9}


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────


def _memory(engine: EngineProfile) -> Iterator[Block]:
    """Of allocations that were traced, at run time or while the engine was built."""
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
    at = Channel("at", "at ms", ".2f", "time since the pass began, ms")
    mib = Channel("mib", "live MiB", ".3f", "live, MiB")
    phase = Channel("phase", "peak in")
    peak = [{"at": memory.peak_at_ms, "mib": memory.peak_bytes / _MIB, "phase": memory.peak_phase}]
    says = [phase, at, mib]
    style: Spec = {"align": "left", "dx": 8, "baseline": "middle"}
    return chart(
        title,
        rows,
        [at, mib],
        marks("area", interpolate="step-after", line=True, opacity=0.35, x=at, y=mib),
        marks("point", peak, says, filled=True, size=60, color="#d62728", x=at, y=mib),
        marks("text", peak, says, text={"field": "phase"}, x=at, y=mib, **style),
        text=f"peak of {peak[0]['mib']:.2f} MiB in {memory.peak_phase}, after {memory.peak_at_ms:.1f} ms",
    )


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


# ── accuracy ────────────────────────────────────────────────────────────────────────────────────────────


def _sentences(views: Iterable[View]) -> Iterator[str]:
    """What they say on a terminal besides their tables."""
    for view in views:
        for block in view.on("terminal", verbose=False):
            yield from (line.strip() for line in block.lines) if isinstance(block, Lines) else ()
        yield from grouped(note for note in view.notes if note.severity < Severity.NOTE)


def _rewritten(collected: Collected) -> Iterator[str]:
    rewrite = collected.manifest.rewrite if collected.manifest is not None else None
    if rewrite is not None and rewrite.inputs_checked and rewrite.largest_error is not None:
        yield (
            f"The rewritten graph is verified on {rewrite.inputs_checked} inputs: largest error "
            f"{rewrite.largest_error:.2g} of the output's magnitude."
        )


def _receipts(collected: Collected) -> list[str]:
    """Types that ran, each line once for all batch sizes that share it."""
    return grouped(
        Note(Severity.NOTE, line.strip(), engine.batch)
        for _, _, engine in _engine_panels(collected)
        for line in (
            *receipt_lines(engine.receipt),
            *([kernel_types_line(engine.kernels)] if engine.kernels is not None else ()),
        )
    )


def _receipt(engine: EngineProfile) -> Iterator[Block]:
    """Requested types and types that ran."""
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


# ── trust and origin ────────────────────────────────────────────────────────────────────────────────────


def _trust(collected: Collected) -> Iterator[str]:
    """Every result file's findings, what the files note, each once, and what of the folder is not shown."""
    for file, report in collected.results.items():
        several = f"{file}: " if len(collected.results) > 1 else ""
        yield from (several + line for line in trust_lines(report))
    notes: dict[str, list[str]] = {}
    for file, record in collected.reports.items():
        for note in record.notes:
            notes.setdefault(note, []).append(file)
    yield from (f"{', '.join(files)}: {note}" for note, files in notes.items())
    yield from (f"not on this page: {file}, {reason}" for file, reason in collected.left_out.items())


def commands_of(records: Mapping[str, _Made], argv: Sequence[str]) -> Lines:
    """The commands as they were typed, for a shell, and what each made; the last one made this page."""
    typed = {f"{what}, {date_text(one.created)}": one.argv for what, one in records.items()}
    commands = [(what, words) for what, words in (*typed.items(), ("this page", argv)) if words]
    return Lines([line for what, words in commands for line in (f"# {what}", _typed(words))], is_copied=True)


def _typed(argv: Sequence[str]) -> str:
    """A command line for a shell, however the program was started."""
    program, *rest = argv
    is_trtopt = PurePath(program).name in ("trtopt", "__main__.py")
    return shlex.join(["trtopt" if is_trtopt else program, *rest])


def _tuning(collected: Collected) -> Iterator[Block]:
    if (ledger := collected.ledger) is not None:
        yield Lines([gain_line(ledger), separate_runs_line(ledger)])
        yield ledger_table(ledger)


def _machines(collected: Collected) -> Iterator[Table]:
    """Each machine, with the files that were made on it."""
    machines: list[tuple[Environment, list[str]]] = []
    for file, report in collected.reports.items():
        known = [files for environment, files in machines if environment == report.environment]
        if known:
            known[0].append(file)
        elif report.environment is not None:
            machines.append((report.environment, [file]))
    for environment, files in machines:
        yield _facts_table(f"Where {', '.join(files)} was made", record_facts(environment))


def _facts_table(title: str, facts: Mapping[str, str]) -> Table:
    """What is known, by name."""
    columns: list[Column[tuple[str, str]]] = [
        Column("what", lambda pair: pair[0]),
        Column("found", lambda pair: pair[1]),
    ]
    return table(title, columns, facts.items())


def record_facts(record: msgspec.Struct, of: str = "") -> dict[str, str]:
    """What a record and those in it hold, by the names of their fields; what is not known is left out."""
    found: dict[str, str] = {}
    for name, value in msgspec.structs.asdict(record).items():
        what = of + name.replace("_", " ")
        if isinstance(value, msgspec.Struct):
            found |= record_facts(value, f"{what} ")
        elif name.endswith("_bytes") and value:
            found[what.removesuffix(" bytes")] = f"{value / _MIB:,.1f} MiB"
        elif value not in (None, "", ()):
            found[what] = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return found


def build_blocks(manifest: Manifest) -> Iterator[Block]:
    """The engines of the folder, their builder's settings and the graph."""
    first = manifest.engines[0]
    yield engines_table(manifest, f"Engines, built by {first.plan.backend} on {first.device.name}")
    if manifest.io:
        names = dict.fromkeys(name for one in manifest.io for name in record_facts(one))
        columns: list[Column[dict[str, str]]] = [Column(name, partial(_fact, name)) for name in names]
        yield table("Typed inputs and outputs", columns, map(record_facts, manifest.io))
    yield _facts_table("Builder settings", first.builder_config)
    lines = [f"model {manifest.onnx.path}, SHA-256 {manifest.onnx.sha256}"]
    rewrite = manifest.rewrite
    if rewrite is not None:
        applied = ", ".join(f"{rule} {count}" for rule, count in rewrite.applied.items()) or "no rule applied"
        lines.append(f"rewritten: {rewrite.nodes_before} → {rewrite.nodes_after} nodes ({applied})")
    yield Lines([*lines, *manifest.notes])


def _fact(name: str, facts: Mapping[str, str]) -> str | None:
    return facts.get(name)
