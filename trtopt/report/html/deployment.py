"""What to deploy, as far as the folder's measurements say: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from trtopt.measure.analysis.findings import is_on_host, trust_of
from trtopt.measure.statistics.summaries import percentile, throughput_of
from trtopt.records import BatchVerdict, BenchPoint, BenchReport, Collected, EngineProfile, Trust

ENOUGH = 0.95
"""A smaller batch size with this share of the highest throughput is deployed instead: it answers sooner."""

_QUANTISED = (("float4", "FP4"), ("int4", "INT4"), ("float8", "FP8"), ("int8", "INT8"))
_FLOATS = (("bfloat16", "BF16"), ("float16", "FP16"), ("float32", "FP32"))


@dataclass(frozen=True)
class Deployment:
    """The selected point, and `points`, one per batch size; it was selected among `trusted`.

    These are the trustworthy points, or all where none is. `quickest` of them has the lowest median latency;
    `verdict` is the selection of its precision at build time.
    """

    file: str
    report: BenchReport
    point: BenchPoint
    points: tuple[BenchPoint, ...]
    trusted: tuple[BenchPoint, ...]
    quickest: BenchPoint
    precision: str
    verdict: BatchVerdict | None
    is_stand_in: bool
    """Whether the model was measured on another backend than the engines are built for."""

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
        precision=_precision(collected, point.batch),
        verdict=_verdict(collected, point.batch),
        is_stand_in=ran_on_stand_in(collected),
    )


def ran_on_stand_in(collected: Collected) -> bool:
    """Whether figures are of another backend than the folder's engines are built for."""
    if collected.manifest is None:
        return False
    built = collected.manifest.engines[0].plan.backend.name
    return any(report.environment.backend.name != built for report in collected.results.values())


def _verdict(collected: Collected, batch: int) -> BatchVerdict | None:
    verdict = collected.manifest.verdict if collected.manifest is not None else None
    return next((one for one in verdict.batches if one.batch == batch), None) if verdict else None


def _precision(collected: Collected, batch: int) -> str:
    """Of the graph that the engine of a batch size was built from; empty where unknown."""
    manifest = collected.manifest
    if manifest is None:
        return ""
    engine = next((one for one in manifest.engines if one.plan.span_of(batch) is not None), None)
    return precision_name(manifest.graph_of(engine).types if engine is not None else manifest.onnx.types)


def precision_name(types: Sequence[str]) -> str:
    """The narrowest type of a graph as people call it; integers that only count are no precision."""
    quantised = next((name for start, name in _QUANTISED if any(one.startswith(start) for one in types)), "")
    return quantised or next((name for dtype, name in _FLOATS if dtype in types), "")


def profiled(collected: Collected, batch: int | None) -> EngineProfile | None:
    """The profile of a batch size, else of the largest: there the device is busiest."""
    engines = [engine for report in collected.profiles.values() for engine in report.engines]
    exact = next((engine for engine in engines if engine.batch == batch), None)
    return exact or max(engines, key=lambda engine: engine.batch, default=None)


def model_file(collected: Collected) -> str | None:
    """The user's model, as the commands name it; None where none does."""
    lines = [collected.manifest.argv] if collected.manifest is not None else []
    lines += [report.argv for report in collected.reports.values()]
    return next((word for argv in lines for word in argv[1:] if word.endswith(".onnx")), None)


def model_name(collected: Collected) -> str:
    """The model's name for a title: the file's without its ending, else the folder's."""
    file = model_file(collected)
    return collected.name if file is None else PurePath(file).stem
