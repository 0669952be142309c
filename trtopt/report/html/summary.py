"""Above the fold: what the subject is, what to deploy, and what to do next; then all batch sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from trtopt.measure.analysis.findings import is_on_host, trust_of
from trtopt.measure.statistics.summaries import percentile
from trtopt.records import BenchPoint, CandidateTime, Collected, EngineProfile, KernelReport, Trust
from trtopt.report.bench import distrust
from trtopt.report.html.charts import (
    LEGEND,
    listed,
    name,
    quantity,
    tooltip_fields,
    type_scale,
    vega_lite,
)
from trtopt.report.html.deployment import (
    Deployment,
    deployment_of,
    p50_of,
    profiled,
    ran_on_stand_in,
    rate_of,
    sampled,
)
from trtopt.report.html.next_steps import next_steps
from trtopt.report.html.page import Block, Chart, Figure, Figures, Mark, Spec, Steps
from trtopt.report.html.sections import colours_of_batches, date_text, result_name
from trtopt.report.kernels import hides_its_time
from trtopt.report.names import kind_text, type_text
from trtopt.report.notes import Note, Severity, grouped
from trtopt.report.view import Cell, Column, Lines, Table, columns_of, table

_Sized = TypeVar("_Sized", BenchPoint, EngineProfile)
_KINDS = 7


# ── the title ───────────────────────────────────────────────────────────────────────────────────────────


def facts(collected: Collected) -> list[str]:
    """Device, backend and date of the figures; of the build where there are none."""
    reports = list(collected.reports.values())
    environments = [report.environment for report in reports if report.environment is not None]
    lines = [f"{one.device.name}, {one.backend}" for one in environments]
    manifest = collected.manifest
    if manifest is not None and (not lines or ran_on_stand_in(collected)):
        engine = manifest.engines[0]
        where = "without a GPU" if engine.device.kind == "none" else f"on {engine.device.name}"
        lines.append(f"engines built by {engine.plan.backend} {where}")
    dates = [report.created for report in reports] or ([manifest.created] if manifest is not None else [])
    return [*dict.fromkeys(lines), date_text(max(dates))] if dates else lines


def mark_of(collected: Collected) -> Mark:
    """Whether the figures are trustworthy; every point of every result file counts."""
    found: dict[Trust, set[int]] = {}
    for report in collected.results.values():
        for point in report.points:
            found.setdefault(trust_of(point, on_host=is_on_host(report)), set()).add(point.batch)
    if not found:
        return Mark("caution", "not measured")
    worst = next(trust for trust in Trust if trust in found)
    text = f"{worst.value}: batch {', '.join(map(str, sorted(found[worst])))}"
    if worst is Trust.NONE:
        return Mark("bad", text)
    if ran_on_stand_in(collected):
        return Mark("caution", "measured on another backend than the engines are built for")
    return Mark("caution", text) if worst is Trust.UNSTEADY else Mark("good", Trust.FULL.value)


# ── the answer ──────────────────────────────────────────────────────────────────────────────────────────


def answer(collected: Collected) -> list[Block]:
    """What to deploy, against what; warnings; and what to do next."""
    deployed = deployment_of(collected)
    engine = profiled(collected, deployed.point.batch if deployed is not None else None)
    blocks: list[Block] = []
    if deployed is not None:
        blocks += [Figures(list(_figures(deployed))), Lines(list(_reasons(deployed)))]
    elif engine is not None and engine.sum_ms:
        blocks.append(Figures([Figure(f"layers at batch {engine.batch}", f"{engine.sum_ms:.3f}", unit="ms")]))
    reports = collected.results.values()
    doubts = [line for trust in (Trust.NONE, Trust.UNSTEADY) for line in distrust(reports, trust)]
    blocks.append(Lines([*doubts, *_warnings(collected)], are_warnings=True))
    blocks.append(Steps(next_steps(collected, deployed, engine)))
    return blocks


def _figures(deployed: Deployment) -> Iterator[Figure]:
    point = deployed.point
    what = f"{deployed.precision}, batch {point.batch}" if deployed.precision else f"batch {point.batch}"
    contract = point.latency.contract.name
    label = "deploy" if not deployed.is_stand_in else "best on the CPU"
    yield Figure(label, what, f"contract {contract}; {deployed.file}")
    p99 = percentile(point.latency.samples.latency_ms, 99.0)
    yield Figure(
        "median latency", f"{p50_of(point):.3f}", f"p99 {p99:.3f} ms" if p99 is not None else "", "ms"
    )
    yield Figure("throughput", f"{rate_of(point) or 0.0:,.0f}", _against_smallest(deployed), "samples/s")
    if (against := _against_baseline(deployed)) is not None:
        yield against


def _against_smallest(deployed: Deployment) -> str:
    first, rate, own = deployed.trusted[0], rate_of(deployed.trusted[0]), rate_of(deployed.point)
    if first is deployed.point or not rate or not own:
        return ""
    return f"{own / rate:.2f} times batch {first.batch}"


def _against_baseline(deployed: Deployment) -> Figure | None:
    """The selected precision against the baseline of the build's precision selection."""
    verdict = deployed.verdict
    chosen = _chosen(deployed)
    if verdict is None or chosen is None or chosen.against_baseline is None:
        return None
    ratio = chosen.against_baseline.ratio
    if ratio is None:
        return None
    baseline = next((one for one in verdict.times if one.against_baseline is None), None)
    name_of_baseline = baseline.candidate if baseline is not None else "the baseline"
    return Figure(
        f"against {name_of_baseline}",
        f"{1 / ratio:.2f}",
        chosen.against_baseline.verdict,
        "times as fast",
    )


def _chosen(deployed: Deployment) -> CandidateTime | None:
    if deployed.verdict is None:
        return None
    return next((one for one in deployed.verdict.times if one.candidate == deployed.verdict.chosen), None)


def _reasons(deployed: Deployment) -> Iterator[str]:
    point, quickest = deployed.point, deployed.quickest
    if len(deployed.trusted) > 1:
        among = "" if len(deployed.trusted) == len(deployed.points) else " that is trustworthy"
        if deployed.is_smaller:
            yield f"Batch {point.batch} is the smallest within 5 % of the highest throughput{among}."
        else:
            yield f"Batch {point.batch} has the highest throughput{among}."
    if quickest is not point:
        yield (
            f"For the lowest latency: batch {quickest.batch}, {p50_of(quickest):.3f} ms, "
            f"{rate_of(quickest) or 0.0:,.0f} samples/s."
        )
    if deployed.verdict is not None:
        yield f"Precision {deployed.verdict.chosen}: {deployed.verdict.reason}."


def _warnings(collected: Collected) -> Iterator[str]:
    yield from collected.notes
    yield from grouped(
        Note(Severity.FAILURE, f"passes are missing: {point.failure}", point.batch)
        for report in collected.results.values()
        for point in report.points
        if point.failure is not None
    )
    for check in collected.checks.values():
        for subject in check.subjects:
            for missed in subject.violations:
                yield (
                    f"{subject.name}: {missed.measure} of {missed.output} is {missed.found:.6g}, "
                    f"the bound is {missed.bound:.12g}"
                )


# ── the table of batch sizes ────────────────────────────────────────────────────────────────────────────


def by_batch(collected: Collected) -> list[Table]:
    """Each figure from the first file that has it; the title names these files."""
    points, measured = _first_of_each_batch(
        (result_name(file, report), sampled(report)) for file, report in collected.results.items()
    )
    engines, inside = _first_of_each_batch(
        (file, report.engines) for file, report in collected.profiles.items()
    )
    sizes = _sizes(collected)
    trust: dict[int, Trust] = {}
    for report in collected.results.values():
        for point in sampled(report):
            trust.setdefault(point.batch, trust_of(point, on_host=is_on_host(report)))
    columns: list[Column[int]] = [
        Column("batch", lambda batch: f"{batch}{trust.get(batch, Trust.FULL).mark}"),
        *columns_of(("p50 ms", "p99 ms"), lambda batch: _latencies(points.get(batch)), ".3f"),
        Column("samples/s", lambda batch: rate_of(points[batch]) if batch in points else None, ",.0f"),
        *columns_of(("layers ms", "floor ms"), lambda batch: _layers(engines.get(batch)), ".3f"),
        Column("peak MiB", lambda batch: _peak(engines.get(batch)), ".2f"),
        Column("engine MiB", sizes.get, ".2f"),
    ]
    title = f"By batch size ({'; '.join([*measured, *inside]) or 'the manifest'})"
    batches = sorted({*points, *engines, *sizes})
    return [table(title, columns, batches, face="page")] if batches else []


def _first_of_each_batch(
    files: Iterable[tuple[str, Iterable[_Sized]]],
) -> tuple[dict[int, _Sized], list[str]]:
    """By batch size, and the names of the files that have one of them."""
    found: dict[int, _Sized] = {}
    names: dict[str, None] = {}
    for file, members in files:
        for one in members:
            if one.batch not in found:
                found[one.batch] = one
                names[file] = None
    return found, list(names)


def _sizes(collected: Collected) -> dict[int, float]:
    """MiB by batch size, of engines built for a single one."""
    if collected.manifest is None:
        return {}
    return {
        engine.plan.batch.opt[0]: engine.size_bytes / 2**20
        for engine in collected.manifest.engines
        if engine.plan.batch.is_fixed
    }


def _latencies(point: BenchPoint | None) -> Sequence[Cell]:
    if point is None:
        return (None, None)
    return (p50_of(point), percentile(point.latency.samples.latency_ms, 99.0))


def _layers(engine: EngineProfile | None) -> Sequence[Cell]:
    return (None, None) if engine is None else (engine.sum_ms or None, engine.roofline.floor_ms)


def _peak(engine: EngineProfile | None) -> float | None:
    return None if engine is None or engine.memory is None else engine.memory.peak_bytes / 2**20


# ── the charts beside the answer ────────────────────────────────────────────────────────────────────────


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
    """Time by what the kernels do: what the layers would show is one that hides all."""
    parts: dict[tuple[str, str], float] = {}
    for row in kernels.rows:
        key = (row.family, row.dtype or "–")
        parts[key] = parts.get(key, 0.0) + row.own_ms
    families = [group.key for group in kernels.by_family]
    return _by_type(f"Where the time goes at batch {batch}, by what kernels do", "does", parts, families, {})


def _against_floor(engine: EngineProfile) -> Chart:
    """Time by kind of layer, with a mark at the least that the device would need."""
    kinds: dict[str, float] = {}
    for layer in engine.layers:
        kinds[kind_text(layer)] = kinds.get(kind_text(layer), 0.0) + (layer.ms or 0.0)
    by_time = sorted((kind for kind in kinds if kinds[kind]), key=lambda kind: -kinds[kind])
    own = by_time[:_KINDS]
    parts: dict[tuple[str, str], float] = {}
    floors: dict[str, float] = {}
    for layer in engine.layers:
        kind = kind_text(layer) if kind_text(layer) in own else "others"
        if layer.ms:
            parts[kind, type_text(layer)] = parts.get((kind, type_text(layer)), 0.0) + layer.ms
        if layer.cost is not None and layer.cost.floor_ms is not None and not layer.is_reformat:
            floors[kind] = floors.get(kind, 0.0) + layer.cost.floor_ms
    order = [*own, *(["others"] if len(by_time) > len(own) else [])]
    floors = {kind: floors[kind] for kind in order if kind in floors}
    about = "against its floor" if floors else "(floors unknown: the device's peaks are)"
    return _by_type(f"Where the time goes at batch {engine.batch} {about}", "kind", parts, order, floors)


def _by_type(
    title: str, what: str, parts: dict[tuple[str, str], float], order: Sequence[str], floors: dict[str, float]
) -> Chart:
    """Times of (what, type) as bars in that order, coloured by type, with a mark at each known floor."""
    rows = [{what: one, "type": dtype, "ms": ms} for (one, dtype), ms in parts.items()]
    y = name(what, sort=list(order), axis={"labelLimit": 150})
    time = "time, ms (line: floor)" if floors else "time, ms"
    bars = {
        "mark": "bar",
        "encoding": {
            "y": y,
            "x": quantity("ms", time),
            "color": name("type", scale=type_scale(dtype for _, dtype in parts), legend=LEGEND),
            "tooltip": tooltip_fields((what, what, ""), ("type", "type", ""), ("ms", "ms", ".4f")),
        },
    }
    ticks = {
        "data": {"values": [{what: one, "floor": floor} for one, floor in floors.items()]},
        "mark": {"type": "tick", "thickness": 3, "size": 18, "style": "overlay"},
        "encoding": {
            "y": y,
            "x": quantity("floor", time),
            "tooltip": tooltip_fields((what, what, ""), ("floor", "floor, ms", ".4f")),
        },
    }
    totals = {one: sum(ms for (other, _), ms in parts.items() if other == one) for one in order}
    text = [
        f"{one}: {total:.4f} ms" + (f", floor {floors[one]:.4f} ms" if one in floors else "")
        for one, total in totals.items()
    ]
    spec = vega_lite(rows, layer=[bars, ticks] if floors else [bars])
    return Chart(title, spec, listed(text), height=90 + 22 * len(order))
