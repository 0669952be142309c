"""The whole way from a model to a choice of engine: lint, build, bench, check, in this order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from trtopt.data import open_data
from trtopt.data.source import range_notes
from trtopt.device.backends import choose_for_building, open_builder
from trtopt.files.outputs import check_output, json_kind, write_output
from trtopt.measure.analysis.findings import trust_of
from trtopt.measure.analysis.sweep_points import knee
from trtopt.measure.load.arrivals import Goal, parse_goal
from trtopt.measure.statistics.summaries import percentile, throughput_of
from trtopt.onnxio.model_info import read_onnx
from trtopt.precision.bounds import bounds_in
from trtopt.recipe import BEST, batch_sizes
from trtopt.records import BenchPoint, Trust, to_json
from trtopt.records.tune import Optimized, OptimizedPoint
from trtopt.requests.build import OptimizeRequest
from trtopt.requests.measure import BenchRequest
from trtopt.requests.models import CheckRequest
from trtopt.requests.recipe import recipe_of
from trtopt.requests.shared import BackendName
from trtopt.rewrite.lint import lint_model
from trtopt.serving.load_folder import BENCH_FILE
from trtopt.targets import target_of
from trtopt.workflows.bench.bench import bench, check_request
from trtopt.workflows.build.build import build_recipe, default_output, obstacle
from trtopt.workflows.listener import Listener
from trtopt.workflows.precision.check import check

BATCHES = (1, 8, 32)
"""Built for where the model leaves the batch open and no batch sizes are given."""
PERCENTILE = 99.0


_RESULT = json_kind("trtopt.bench")


def optimize(request: OptimizeRequest) -> Optimized:
    """Lint a model, rewrite it, choose its precision, build, measure and check the engines.

    `trtopt.optimize("model.onnx", data="samples.npz", slo="p99=10ms").best` is the batch size to deploy. The
    folder then holds the build and the measurement; `trtopt report FOLDER` makes a page of both. The same
    can be done step by step with `build`, `bench` and `check`.

    Returns:
        What was measured at each batch size, and the one to deploy; `met` is whether it keeps the bounds, and
        `is_goal_shown` whether the engines that were built have shown so.
    """
    data, slo = request.data, request.slo
    source, listener = Path(request.model), _once(request.listener)
    goal = parse_goal(slo, "--slo") if slo is not None else None
    bounds = bounds_in({"min_cosine": request.min_cosine})
    measuring = BenchRequest(source, backend="auto", data=data, duration=request.duration, listener=listener)
    check_request(measuring)
    onnx = read_onnx(source)
    unscaled = () if data is None else range_notes(onnx.inputs, open_data(data))
    folder = Path(request.output) if request.output is not None else default_output(source)
    chosen = choose_for_building(request.backend).name
    own = open_builder(chosen).backend
    findings = lint_model(source, target=target_of(own).name).advice
    batch = batch_sizes(request.batch) or (None if onnx.fixed_batch is not None else BATCHES)
    recipe = recipe_of(request, batch=batch, backend=chosen)
    found = obstacle(onnx, recipe, own)
    problem = found.problem if found is not None else ""
    if data is None:
        problem = "no samples are given with --data"
    if not problem:
        selection: dict[str, object] = {"precision": BEST, "calib": data, "bounds": bounds.given}
        recipe = recipe_of(request, batch=batch, backend=chosen, **selection)
    if folder.is_dir():
        check_output(folder / BENCH_FILE, _RESULT)
    manifest = build_recipe(source, folder, recipe, force=request.force, listener=listener)
    report = bench(replace(measuring, path=folder))
    write_output(folder / BENCH_FILE, to_json(report, indent=None), _RESULT)
    runs = cast("BackendName", report.environment.backend.name)  # an engine in another's place has a note
    comparison = CheckRequest(
        folder, source, data=data, backend=runs, min_cosine=request.min_cosine, listener=listener
    )
    checked = check(comparison)
    precisions = {one.batch: one.chosen for one in manifest.verdict.batches} if manifest.verdict else {}
    points = tuple(
        point_of(point, precisions.get(point.batch), goal, trust_of(point, report.environment.device))
        for point in report.points
    )
    best = best_of(points, goal)
    return Optimized(
        model=str(request.model),
        folder=str(folder),
        builder=str(manifest.engines[0].plan.backend),
        backend=str(report.environment.backend),
        device=report.environment.device.name,
        goal=slo,
        percentile=goal.p if goal is not None else PERCENTILE,
        points=points,
        best=best,
        cosine=min(output.cosine for subject in checked.subjects for output in subject.outputs),
        min_cosine=request.min_cosine,
        is_accurate=checked.passed,
        met=best is not None and checked.passed,
        data=checked.data,
        samples=max(subject.samples for subject in checked.subjects),
        findings=len(findings),
        violations=tuple(one for subject in checked.subjects for one in subject.violations),
        alarms=tuple(dict.fromkeys((*manifest.alarms, *checked.alarms))),
        notes=(*unscaled, *((f"the precision is the graph's: {problem}",) if problem else ())),
    )


def _once(listener: Listener) -> Listener:
    """The listener, without notes that an earlier stage has sent: each stage says where it runs."""
    sent: set[str] = set()

    def note(text: str) -> None:
        if text not in sent:
            sent.add(text)
            listener.note(text)

    return replace(listener, note=note)


def best_of(points: Sequence[OptimizedPoint], goal: Goal | None) -> OptimizedPoint | None:
    """The highest throughput among the points that meet the goal; without one the knee, by the median."""
    if goal is None:
        return points[knee([one.p50_ms or math.inf for one in points], [one.samples_per_s for one in points])]
    meeting = [point for point in points if point.meets_goal]
    return max(meeting, key=lambda point: point.samples_per_s, default=None)


def point_of(point: BenchPoint, precision: str | None, goal: Goal | None, trust: Trust) -> OptimizedPoint:
    """A measured batch size against the latency goal; too few samples for its percentile do not meet it."""
    latencies = point.latency.samples.latency_ms
    found = percentile(latencies, goal.p if goal is not None else PERCENTILE)
    rate = throughput_of(point)
    return OptimizedPoint(
        batch=point.batch,
        precision=precision,
        p50_ms=percentile(latencies, 50.0),
        latency_ms=found,
        samples_per_s=rate.samples_per_s if rate is not None else 0.0,
        meets_goal=goal is None or (found is not None and found <= goal.limit_ms),
        trust=trust,
    )
