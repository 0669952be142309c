"""Above the fold: what the subject is, what to deploy, and what to do next; then all batch sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from trtopt.measure.analysis.findings import is_on_host, trust_of
from trtopt.measure.statistics.summaries import percentile
from trtopt.records import BenchPoint, CandidateTime, Collected, EngineProfile, Trust
from trtopt.report.html.blocks import (
    Block,
    Cell,
    Column,
    Figure,
    Figures,
    Lines,
    Mark,
    Steps,
    Table,
    known_columns,
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
from trtopt.report.html.latency import result_name
from trtopt.report.html.next_steps import next_steps
from trtopt.report.html.notes import distrusted, grouped
from trtopt.report.html.provenance import date_text

_Sized = TypeVar("_Sized", BenchPoint, EngineProfile)
_BATCHES = (
    Column("batch"),
    *(Column(name, "number", 3) for name in ("p50 ms", "p99 ms")),
    Column("samples/s", "number"),
    *(Column(name, "number", 3) for name in ("layers ms", "floor ms")),
    *(Column(name, "number", 2) for name in ("peak MiB", "engine MiB")),
)


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
    warnings = [*distrusted(collected), *_warnings(collected)]
    blocks.append(Lines(warnings, are_warnings=True))
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
        (point.batch, f"passes are missing: {point.failure}")
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
    batches = sorted({*points, *engines, *sizes})
    if not batches:
        return []
    title = f"By batch size ({'; '.join([*measured, *inside]) or 'the manifest'})"
    rows: list[list[Cell]] = [
        [
            f"{batch}{trust.get(batch, Trust.FULL).mark}",
            *_latencies(points.get(batch)),
            *_layers(engines.get(batch)),
            sizes.get(batch),
        ]
        for batch in batches
    ]
    return [Table(title, *known_columns(_BATCHES, rows))]


def _first_of_each_batch(
    files: Iterable[tuple[str, Iterable[_Sized]]],
) -> tuple[dict[int, _Sized], list[str]]:
    """By batch size, and the names of the files that have one of them."""
    found: dict[int, _Sized] = {}
    names: dict[str, None] = {}
    for name, members in files:
        for one in members:
            if one.batch not in found:
                found[one.batch] = one
                names[name] = None
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


def _latencies(point: BenchPoint | None) -> list[Cell]:
    if point is None:
        return [None, None, None]
    return [p50_of(point), percentile(point.latency.samples.latency_ms, 99.0), rate_of(point)]


def _layers(engine: EngineProfile | None) -> list[Cell]:
    if engine is None:
        return [None, None, None]
    peak = engine.memory.peak_bytes / 2**20 if engine.memory is not None else None
    return [engine.sum_ms or None, engine.roofline.floor_ms, peak]
