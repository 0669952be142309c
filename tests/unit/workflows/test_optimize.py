"""The judgement of `trtopt optimize`: which batch size to deploy, and whether the goals are met."""

from __future__ import annotations

import msgspec
import pytest

from tests.support import examples
from trtopt.measure.load.arrivals import Goal
from trtopt.records import BenchPoint, Trust
from trtopt.records.precision import Violation
from trtopt.records.tune import Optimized, OptimizedPoint
from trtopt.report.tuning import optimized_view, verdict_line
from trtopt.workflows.optimize import best_of, point_of


def measured(latencies: list[float]) -> BenchPoint:
    """A batch of 8 whose queries take these times, one after another."""
    ends = [sum(latencies[: index + 1]) for index in range(len(latencies))]
    starts = [end - took for end, took in zip(ends, latencies, strict=True)]
    samples = msgspec.structs.replace(
        examples.samples(), start_ms=starts, end_ms=ends, inference_stream=[0] * len(ends), group=[]
    )
    measurement = msgspec.structs.replace(examples.measurement(), samples=samples)
    return BenchPoint(batch=8, latency=measurement)


@pytest.mark.parametrize(
    ("goal", "meets"),
    [(Goal(50, 1.0), True), (Goal(50, 0.9), False), (Goal(90, 1.9), True), (Goal(99, 1.0), False)],
)
def test_a_batch_size_meets_the_goal_by_its_percentile(goal: Goal, meets: bool) -> None:
    found = point_of(measured([1.0] * 9 + [9.0]), "fp16", goal, Trust.FULL)
    assert (found.meets_goal, found.precision) == (meets, "fp16")


def test_too_few_samples_for_the_percentile_do_not_meet_a_goal() -> None:
    found = point_of(measured([1.0] * 10), None, Goal(99, 5.0), Trust.FULL)
    assert (found.latency_ms, found.meets_goal) == (None, False)


def optimized(*points: OptimizedPoint, is_accurate: bool = True) -> Optimized:
    best = best_of(points, Goal(99, 2.0))
    return Optimized(
        model="m.onnx",
        folder="m.trtopt",
        builder="TensorRT",
        backend="TensorRT",
        device="GPU",
        goal="p99=2ms",
        percentile=99.0,
        points=points,
        best=best,
        met=best is not None and is_accurate,
        cosine=0.98,
        min_cosine=0.99,
        is_accurate=is_accurate,
        data="d.npz",
        samples=8,
        findings=0,
    )


def point(batch: int, rate: float, latency_ms: float) -> OptimizedPoint:
    return OptimizedPoint(
        batch=batch,
        precision=None,
        p50_ms=latency_ms / 2,
        latency_ms=latency_ms,
        samples_per_s=rate,
        meets_goal=latency_ms <= 2,
        trust=Trust.FULL,
    )


def test_the_fastest_batch_size_that_meets_the_goal_is_deployed() -> None:
    found = optimized(point(1, 100, 1.0), point(8, 400, 1.9), point(32, 900, 4.0))
    assert found.best is not None
    assert (found.best.batch, found.met) == (8, True)
    assert verdict_line(found) == (
        "deploy m.trtopt at batch 8 on TensorRT on GPU: 400 samples/s, p99 1.900 ms, keeps p99=2ms"
    )


def test_a_goal_is_shown_by_the_built_engines_and_by_figures_to_trust_alone() -> None:
    found = optimized(point(1, 100, 1.0))
    assert found.is_goal_shown
    assert not msgspec.structs.replace(found, builder="tensorrt-rtx 1").is_goal_shown
    hot = msgspec.structs.replace(point(1, 100, 1.0), trust=Trust.NONE)
    assert not optimized(hot).is_goal_shown
    assert msgspec.structs.replace(optimized(hot), goal=None).is_goal_shown


def test_a_batch_size_must_gain_as_many_times_as_it_is_slower() -> None:
    points = (point(1, 1000, 1.0), point(8, 7000, 1.2), point(32, 7460, 20.0))
    best = best_of(points, None)
    found = msgspec.structs.replace(optimized(*points), goal=None, best=best)
    assert best is not None
    assert best.batch == 8
    assert "batch 32 has 1.07 times as many at 16.7 times the p50" in found.table()


def test_without_a_median_the_highest_throughput_is_best() -> None:
    points = [msgspec.structs.replace(point(batch, batch, 1.0), p50_ms=None) for batch in (1, 8)]
    assert best_of(points, None) == points[1]


def test_engines_that_were_not_measured_are_not_to_be_deployed() -> None:
    found = msgspec.structs.replace(optimized(point(1, 100, 1.0)), backend="onnxruntime 1", folder="a b")
    assert "deploy" not in found.table()
    assert "trtopt bench 'a b'" in found.table()


def test_a_precision_that_was_chosen_on_the_cpu_says_nothing_of_tensorrt() -> None:
    chosen = msgspec.structs.replace(point(1, 100, 1.0), precision="int8")
    for backend in ("onnxruntime 1", "tensorrt 10"):
        found = msgspec.structs.replace(optimized(chosen), builder=backend, backend=backend)
        assert ("nothing about TensorRT" in verdict_line(found)) == backend.startswith("onnxruntime")


def test_no_batch_size_meets_the_goal() -> None:
    found = optimized(point(1, 100, 3.0), point(8, 400, 5.0))
    assert not found.met
    assert "no batch size keeps p99=2ms; nearest is batch 1: 100 samples/s, p99 3.000 ms" in verdict_line(
        found
    )


def test_an_engine_that_is_not_accurate_is_not_deployed() -> None:
    """A cosine says nothing of NaN, which no cosine includes: the verdict names what is violated."""
    infinite = Violation(output="y", measure="NaN or infinite values", found=3.0, bound=0.0)
    found = msgspec.structs.replace(
        optimized(point(1, 100, 1.0), is_accurate=False), violations=(infinite, infinite)
    )
    assert not found.met
    assert verdict_line(found) == (
        "NOT MET on TensorRT on GPU: NaN or infinite values of 'y' is 3, the bound is 0"
    )


def test_a_percentile_with_too_few_samples_is_not_shown_as_a_figure() -> None:
    found = optimized(msgspec.structs.replace(point(8, 100.0, 1.0), latency_ms=None))
    assert "100 samples/s, p99 needs more samples" in verdict_line(found)
    assert [note.text for note in optimized_view(found).notes] == [
        "p99 needs more samples at batch 8: give a longer --duration"
    ]


def test_the_result_shows_itself_as_the_command_does() -> None:
    found = optimized(point(8, 100.0, 1.0))
    assert repr(found) == f"<Optimized: {verdict_line(found)}>"
    assert found.table().startswith(verdict_line(found))
    assert found.rows()[0]["samples_per_s"] == 100.0
    assert found.to_dict()["schema"] == "trtopt.optimize/2"
