"""The page's answer: what to deploy, as far as the folder's measurements say, why, and what to do next."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from trtopt.measure.analysis.findings import (
    CLOCKS_BELOW,
    COPY_BOUND,
    ENQUEUE_BOUND,
    STREAMS_GAIN_NOTHING,
    UNSTABLE,
    hints_of,
    is_on_host,
    trust_of,
)
from trtopt.measure.statistics.summaries import percentile, throughput_of
from trtopt.records import (
    BatchVerdict,
    BenchPoint,
    BenchReport,
    Collected,
    EngineProfile,
    Trust,
)
from trtopt.report.bench import bench_notes, distrust
from trtopt.report.html.charts import BATCH, Channel, Row, batch_scale, chart, coloured_types, marks, times
from trtopt.report.html.page import Chart, Figure, Mark, Spec, Step
from trtopt.report.kernels import hides_its_time
from trtopt.report.profile import kind_text, type_text
from trtopt.report.view import Severity, grouped

ENOUGH = 0.95
"""A smaller batch size with this share of the highest throughput is deployed instead: it answers sooner."""

_PRECISIONS = {
    "float4": "FP4",
    "int4": "INT4",
    "float8": "FP8",
    "int8": "INT8",
    "bfloat16": "BF16",
    "float16": "FP16",
    "float32": "FP32",
}
"""By the start of a type's name, the narrowest first; integers that only count are no precision."""

_KINDS = 7
_SHOWN = 3
_WORTH = 0.03
"""A share of the time below which a step is not worth naming."""

_RISING = 1.1
"""How much more throughput the largest batch size has than the one before, where a larger one is worth it."""

_CPU = "onnxruntime"
_OWN_OPTIONS = ("-o", "--output", "--batch", "--json")
"""Those of a build that the next one must not repeat; each has a value."""

_OF_HINTS = {
    UNSTABLE: (1.5, ""),
    ENQUEUE_BOUND: (0.5, "--graph"),
    COPY_BOUND: (0.5, "--contract serving"),
    STREAMS_GAIN_NOTHING: (0.1, ""),
    CLOCKS_BELOW: (0.1, ""),
}
"""What heeding each is worth, and the options of `bench` that do it."""

_Candidate = tuple[float, Step]
"""A step, and about the share of the time that it may save; above 1, other figures depend on it."""


# ── the title ───────────────────────────────────────────────────────────────────────────────────────────


def model_file(collected: Collected) -> str | None:
    """The user's model, as the commands name it; None where none does."""
    lines = [collected.manifest.argv] if collected.manifest is not None else []
    lines += [report.argv for report in collected.reports.values()]
    return next((word for argv in lines for word in argv[1:] if word.endswith(".onnx")), None)


def model_name(collected: Collected) -> str:
    """The model's name for a title: the file's without its ending, else the folder's."""
    file = model_file(collected)
    return collected.name if file is None else PurePath(file).stem


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


def date_text(created: str) -> str:
    """A record's time of day to the minute: `2026-01-31 12:00 UTC`."""
    return f"{created[:10]} {created[11:16]} UTC"


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


# ── what to deploy ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Deployment:
    """The selected point, and `points`, one per batch size; it was selected among `trusted`.

    These are the trustworthy points, or all where none is. `quickest` of them has the lowest median latency.
    """

    file: str
    report: BenchReport
    point: BenchPoint
    points: tuple[BenchPoint, ...]
    trusted: tuple[BenchPoint, ...]
    quickest: BenchPoint

    @property
    def is_smaller(self) -> bool:
        """Whether a larger batch size has a somewhat higher throughput."""
        return max(self.trusted, key=lambda one: rate_of(one) or 0.0) is not self.point


def sampled(report: BenchReport) -> list[BenchPoint]:
    """Points with latencies."""
    return [point for point in report.points if point.latency.samples.start_ms]


def p50_of(point: BenchPoint) -> float:
    """The median latency in ms, of a point with latencies."""
    median = percentile(point.latency.samples.latency_ms, 50.0)
    assert median is not None  # any value at all supports it
    return median


def p99_of(point: BenchPoint) -> float | None:
    """In ms; None: of too few queries."""
    return percentile(point.latency.samples.latency_ms, 99.0)


def rate_of(point: BenchPoint) -> float | None:
    """Samples per second, of the throughput pass if there was one."""
    rate = throughput_of(point)
    return rate.samples_per_s if rate is not None else None


def deployment_of(collected: Collected) -> Deployment | None:
    """The smallest batch size with nearly the highest throughput, of trustworthy points where there are any.

    Each batch size is taken from the first result file that has it, so that no two contracts are mixed
    without need. None: nothing was measured.
    """
    found: dict[int, tuple[str, BenchReport, BenchPoint]] = {}
    for file, report in collected.results.items():
        for point in sampled(report):
            found.setdefault(point.batch, (file, report, point))
    places = [found[batch] for batch in sorted(found) if rate_of(found[batch][2])]
    if not places:
        return None
    trusted = [
        (file, report, point)
        for file, report, point in places
        if trust_of(point, on_host=is_on_host(report)) is not Trust.NONE
    ] or places
    best = max(rate_of(point) or 0.0 for _, _, point in trusted)
    file, report, point = next(place for place in trusted if (rate_of(place[2]) or 0.0) >= ENOUGH * best)
    return Deployment(
        file=file,
        report=report,
        point=point,
        points=tuple(point for _, _, point in places),
        trusted=tuple(point for _, _, point in trusted),
        quickest=min((point for _, _, point in trusted), key=p50_of),
    )


def ran_on_stand_in(collected: Collected) -> bool:
    """Whether figures are of another backend than the folder's engines are built for."""
    if collected.manifest is None:
        return False
    built = collected.manifest.engines[0].plan.backend.name
    return any(report.environment.backend.name != built for report in collected.results.values())


def precision_of(collected: Collected, batch: int) -> str:
    """Of the graph that the engine of a batch size was built from; empty where unknown."""
    manifest = collected.manifest
    if manifest is None:
        return ""
    engine = next((one for one in manifest.engines if one.plan.span_of(batch) is not None), None)
    return precision_name(manifest.graph_of(engine).types if engine is not None else manifest.onnx.types)


def precision_name(types: Sequence[str]) -> str:
    """The narrowest type of a graph as people call it."""
    names = (name for start, name in _PRECISIONS.items() if any(one.startswith(start) for one in types))
    return next(names, "")


def profiled(collected: Collected, batch: int | None) -> EngineProfile | None:
    """The profile of a batch size, else of the largest: there the device is busiest."""
    engines = [engine for report in collected.profiles.values() for engine in report.engines]
    exact = next((engine for engine in engines if engine.batch == batch), None)
    return exact or max(engines, key=lambda engine: engine.batch, default=None)


def headline(collected: Collected, deployed: Deployment) -> Iterator[Figure]:
    """What to deploy, and against what."""
    point, rate = deployed.point, rate_of(deployed.point) or 0.0
    precision, contract = precision_of(collected, point.batch), point.latency.contract.name
    label = "best on the CPU" if ran_on_stand_in(collected) else "deploy"
    what = f"{precision}, batch {point.batch}" if precision else f"batch {point.batch}"
    yield Figure(label, what, f"contract {contract}; {deployed.file}")
    p99 = p99_of(point)
    yield Figure(
        "median latency", f"{p50_of(point):.3f}", f"p99 {p99:.3f} ms" if p99 is not None else "", "ms"
    )
    first = deployed.trusted[0]
    gain = rate / (rate_of(first) or rate) if first is not point else None
    against = f"{gain:.2f} times batch {first.batch}" if gain else ""
    yield Figure("throughput", f"{rate:,.0f}", against, "samples/s")
    if (verdict := _verdict(collected, point.batch)) is not None:
        yield from _against_baseline(verdict)


def _verdict(collected: Collected, batch: int) -> BatchVerdict | None:
    """The selection of a batch size's precision at build time."""
    verdict = collected.manifest.verdict if collected.manifest is not None else None
    return next((one for one in verdict.batches if one.batch == batch), None) if verdict else None


def _against_baseline(verdict: BatchVerdict) -> Iterator[Figure]:
    times = {one.candidate: one.against_baseline for one in verdict.times}
    baseline = next((name for name, against in times.items() if against is None), "the baseline")
    chosen = times.get(verdict.chosen)
    if chosen is not None and chosen.ratio is not None:
        yield Figure(f"against {baseline}", f"{1 / chosen.ratio:.2f}", chosen.verdict, "times as fast")


def reasons(collected: Collected, deployed: Deployment) -> Iterator[str]:
    """Why that point, and which one answers soonest."""
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
    if (verdict := _verdict(collected, point.batch)) is not None:
        yield f"Precision {verdict.chosen}: {verdict.reason}."


def warnings(collected: Collected) -> list[str]:
    """What speaks against the figures and the engines, the worst first."""
    reports = collected.results.values()
    notes = [note for report in reports for note in bench_notes(report) if note.severity <= Severity.DOUBT]
    shown = [note for note in notes if note.text]  # what makes figures not trustworthy has reasons besides
    missed = (
        f"{subject.name}: {one.measure} of {one.output} is {one.found:.6g}, the bound is {one.bound:.12g}"
        for check in collected.checks.values()
        for subject in check.subjects
        for one in subject.violations
    )
    doubts = [*distrust(reports), *grouped(shown, in_full=True)]
    return [*doubts, *collected.notes, *missed]


# ── the charts beside it ────────────────────────────────────────────────────────────────────────────────


def colours_of_batches(folders: Sequence[Collected]) -> Spec:
    """One colour per batch size of the page's folders, for all of its charts."""
    reports = [report for one in folders for report in one.reports.values()]
    return batch_scale(
        one.batch
        for report in reports
        for one in (report.points if isinstance(report, BenchReport) else report.engines)
    )


def overview_charts(
    deployed: Deployment | None, engine: EngineProfile | None, colours: Spec
) -> Iterator[Chart]:
    """Latency and throughput over the batch size, and where the time goes against its floor."""
    if deployed is not None and len(deployed.points) > 1:
        yield _over_batches(deployed.points, colours)
    if engine is not None and engine.sum_ms:
        yield _by_what(engine)


def _over_batches(points: Sequence[BenchPoint], scale: Spec) -> Chart:
    """Throughput as bars in the batch sizes' colours, median latency as a line; both axes from zero."""
    rows = [
        {
            "batch": point.batch,
            "label": f"batch {point.batch}",
            "p50": p50_of(point),
            "p99": p99_of(point),
            "rate": rate_of(point),
        }
        for point in points
    ]
    p50 = Channel("p50", "ms", ".3f", "median, ms (line)", more={"axis": {"orient": "left"}})
    p99 = Channel("p99", "ms p99", ".3f")
    on_right = {"axis": {"orient": "right", "grid": False}}
    rate = Channel("rate", "samples/s", ",.0f", "samples/s (bars)", more=on_right)
    colour = Channel("label", more={"scale": scale, "legend": None})
    bars = marks("bar", opacity=0.6, width={"band": 0.55}, x=BATCH, y=rate, color=colour)
    line = marks("line", style="overlay", point={"size": 45, "style": "overlay"}, x=BATCH, y=p50)
    title, says = "Latency and throughput by batch size", [BATCH, p50, p99, rate]
    return chart(title, rows, says, bars, line, height=230, resolve={"scale": {"y": "independent"}})


def _by_what(engine: EngineProfile) -> Chart:
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
        if layer.cost is not None and layer.cost.floor_ms is not None and not layer.is_reformat:
            floors[kind_text(layer)] += layer.cost.floor_ms
    kinds: dict[str, float] = defaultdict(float)
    for (kind, _), ms in parts.items():
        kinds[kind] += ms
    order = sorted((kind for kind in kinds if kinds[kind]), key=lambda kind: -kinds[kind])
    others = order[_KINDS:]
    what = "does" if kernels is not None else "kind"
    rows: list[Row] = [
        {what: "others" if kind in others else kind, "type": dtype, "ms": ms}
        for (kind, dtype), ms in parts.items()
        if ms
    ]
    if others:
        order = [*order[:_KINDS], "others"]
        floors["others"] = sum(floors.pop(kind, 0.0) for kind in others)
    known = {kind: floors[kind] for kind in order if floors.get(kind)}
    about = "against its floor" if known else "(floors unknown: the device's peaks are)"
    title = f"Where the time goes at batch {engine.batch}"
    title += f" {about}" if kernels is None else ", by what kernels do"
    return times(title, rows, what, order, coloured_types(row["type"] for row in rows), floors=known)


# ── what to do next ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Commands:
    """Commands for a folder, as a shell takes them."""

    collected: Collected

    @property
    def folder(self) -> str:
        """The folder as the user named it."""
        return shlex.quote(self.collected.folder)

    @property
    def model(self) -> str:
        """The user's model; a placeholder where no command names it."""
        return shlex.quote(model_file(self.collected) or "MODEL.onnx")

    @property
    def source(self) -> str:
        """What is measured: the build folder, or the model where there is none."""
        return self.model if self.collected.manifest is None else self.folder

    @property
    def has_fixed_batch(self) -> bool:
        """Whether the folder's model builds for no other batch size."""
        manifest = self.collected.manifest
        return manifest is not None and manifest.onnx.fixed_batch is not None

    @property
    def is_on_cpu(self) -> bool:
        """Whether what is measured here runs on ONNX Runtime."""
        reports = self.collected.reports.values()
        names = [one.environment.backend.name for one in reports if one.environment]
        if self.collected.manifest is not None:
            names.append(self.collected.manifest.engines[0].plan.backend.name)
        return _CPU in names

    def into(self, file: str) -> str:
        """The option that writes a file of that name into the folder."""
        return f"--json {shlex.quote(f'{self.collected.folder}/{file}')}"

    def bench(self, file: str = "result.json", options: str = "") -> str:
        """A measurement into a file of the folder."""
        return " ".join(filter(None, ("trtopt bench", self.source, options, self.into(file))))

    def profile(self, *options: str) -> str:
        """A profile into the folder."""
        return " ".join(filter(None, ("trtopt profile", self.source, *options, "-o", self.folder)))

    def beside(self, what: str) -> str:
        """A folder next to this one, called after it."""
        folder = PurePath(self.collected.folder)
        parent = folder.parent if folder.name == self.collected.name else folder / ".."
        return shlex.quote(str(parent / f"{self.collected.name}-{what}"))

    def build_of(self, batches: str) -> str:
        """The folder's own build for other batch sizes."""
        argv = self.collected.manifest.argv if self.collected.manifest is not None else ()
        kept: list[str] = []
        words = iter(argv[2:] if argv[1:2] == ("build",) and "--locked" not in argv else ())
        for word in words:
            if word in _OWN_OPTIONS:
                next(words, None)
            elif word != "--force" and not word.startswith(tuple(f"{name}=" for name in _OWN_OPTIONS)):
                kept.append(word)
        is_on_host = self.is_on_cpu and not ran_on_stand_in(self.collected)
        own = shlex.join(kept) or self.model + (" --backend onnxruntime" if is_on_host else "")
        return f"trtopt build {own} -o {self.beside('batches')} --batch {batches}"


def next_steps(collected: Collected, deployed: Deployment | None, engine: EngineProfile | None) -> list[Step]:
    """At most three, by worth. `engine` is the profile that goes with the deployed point."""
    commands = Commands(collected)
    candidates = [*_measuring(commands, deployed)]
    if deployed is not None:
        candidates += [*_of_hints(commands, deployed), _of_batches(commands, deployed)]
    if engine is not None and engine.sum_ms and not commands.is_on_cpu:
        candidates += _of_layers(commands, engine)
    candidates.sort(key=lambda one: -one[0])
    return [step for worth, step in candidates[:_SHOWN] if worth >= _WORTH]


def _measuring(commands: Commands, deployed: Deployment | None) -> Iterator[_Candidate]:
    """To have figures, and to believe them."""
    collected = commands.collected
    if deployed is None:
        why = "There is no result file of `trtopt bench` here."
        yield (9, Step("Measure it", why, commands.bench()))
        return
    if ran_on_stand_in(collected):
        built = collected.manifest.engines[0].plan.backend.name if collected.manifest is not None else ""
        why = f"The engines are built for {built}; the figures here are the model's on the CPU."
        what = "Measure the engines on a machine with a GPU"
        yield (8, Step(what, why, commands.bench(deployed.file)))
    elif distrusted := [
        point
        for point in deployed.points
        if trust_of(point, on_host=is_on_host(deployed.report)) is Trust.NONE
    ]:
        sizes = ", ".join(str(point.batch) for point in distrusted)
        why = f"The figures of batch {sizes} are not trustworthy."
        # On the same terms into the same file: in another one, they would stay on the page.
        file = next(file for file, report in collected.results.items() if distrusted[0] in report.points)
        again = commands.bench(file, f"--contract {shlex.quote(distrusted[0].latency.contract.name)}")
        yield (7, Step("Measure again when nothing disturbs the machine", why, again))
    if not collected.profiles:
        yield (2, Step("Profile it", "Where the time goes is unknown.", commands.profile()))


def _of_hints(commands: Commands, deployed: Deployment) -> Iterator[_Candidate]:
    """The hints about the deployed point, with their remedies."""
    point = deployed.point
    for hint in hints_of(point, on_host=is_on_host(deployed.report)):
        worth, options = _OF_HINTS[hint.short]
        does_it = bool(options) and options in hint.remedy
        if does_it and hint.short == ENQUEUE_BOUND and _refuses_graph(point):
            continue
        why = f"At batch {point.batch}, {hint.text.removeprefix(f'{hint.short}: ')}."
        file = f"{options.split()[-1].removeprefix('--')}.json" if does_it else ""
        command = commands.bench(file, options) if does_it else ""
        yield (worth, Step(f"{hint.remedy[0].upper()}{hint.remedy[1:]}", why, command))


def _refuses_graph(point: BenchPoint) -> bool:
    return any("without a CUDA graph" in note for note in point.latency.notes)


def _of_batches(commands: Commands, deployed: Deployment) -> _Candidate:
    """A larger batch size where throughput still rises, several where there is one."""
    largest = deployed.points[-1].batch
    if commands.has_fixed_batch:
        why = f"The model fixes batch {largest}: how throughput grows is unknown."
        name = PurePath(model_file(commands.collected) or "MODEL.onnx").stem
        dynamic = shlex.quote(f"{name}-dynamic.onnx")
        opening = f"trtopt rewrite {commands.model} --dynamic-batch -o {dynamic}"
        return (0.3, Step("Open the batch axis", why, opening))
    if len(deployed.points) == 1:
        why = f"Only batch {largest} is measured: how throughput grows is unknown."
        return (0.3, Step("Measure several batch sizes", why, commands.build_of("1,8,32")))
    before, last = deployed.points[-2:]
    gain = (rate_of(last) or 0.0) / (rate_of(before) or 1.0)
    why = f"Throughput still rises: {gain:.2f} times from batch {before.batch} to {largest}."
    larger = commands.build_of(f"{largest},{largest * 2},{largest * 4}")
    worth = min(gain - 1, 1.0) if gain >= _RISING else 0.0
    return (worth, Step("Try larger batch sizes", why, larger))


def _of_layers(commands: Commands, engine: EngineProfile) -> Iterator[_Candidate]:
    """What the profile says that another graph, another type or another look may change."""
    at, lint = f"At batch {engine.batch}, ", f"trtopt lint {commands.model}"
    reformats = [layer.ms for layer in engine.layers if layer.is_reformat and layer.ms]
    share = sum(reformats) / engine.sum_ms
    why = f"{at}{len(reformats)} reformats take {share:.0%} of the time."
    yield (share, Step("Avoid conversions of layout or type", why, lint))
    if engine.unfused:
        ms = {name: one.ms for one in engine.unfused for name in one.nodes[:1]}
        first = max(engine.unfused, key=lambda one: one.ms)
        why = f"{at}{len(engine.unfused)} candidates did not fuse, first {first.fusion}: {first.detail}."
        share = min(sum(ms.values()) / engine.sum_ms, 1.0)
        worth = max(share / 2, _WORTH) if share >= _WORTH else 0.0
        yield (worth, Step("Make the graph fuse", why, lint))
    full = (engine.receipt.time_ran or {}).get("float32", 0.0)
    manifest = commands.collected.manifest
    if full >= 0.5 and (manifest is None or manifest.verdict is None):
        why = f"{at}{full:.0%} of the time is spent in FP32."
        half = f"trtopt build {commands.model} -o {commands.beside('fp16')} --precision fp16"
        yield (full / 2, Step("Build it in FP16", why, half))
    if engine.kernels is None and hides_its_time(engine):
        hidden = engine.coverage.time_opaque
        why = f"{at}{hidden:.0%} of the time lies in layers that hide their nodes."
        yield (hidden / 4, Step("Record the kernels", why, commands.profile("--kernels")))
