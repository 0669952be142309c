"""What the page says to deploy, and what to do next."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support import examples
from tests.support.pages import resnet
from tests.unit.inspect.kernels import test_report as kernel_reports
from trtopt.records import (
    Backend,
    BenchPoint,
    BenchReport,
    Collected,
    EngineProfile,
    Measurement,
    Samples,
    Unfused,
)
from trtopt.report.html.answer import deployment_of, mark_of, next_steps, precision_name, profiled
from trtopt.report.html.folder import report_page
from trtopt.report.html.page import Step
from trtopt.report.view import Lines, Table


def samples(latency: float, count: int = 200, *, enqueue: float = 0.0) -> Samples:
    """Queries of equal length, back to back; the device computes whenever the host does not enqueue."""
    return Samples(
        start_ms=[n * latency for n in range(count)],
        end_ms=[(n + 1) * latency for n in range(count)],
        enqueue_ms=[enqueue] * count,
        gpu_compute_ms=[latency - enqueue] * count,
        h2d_ms=[],
        d2h_ms=[],
        inference_stream=[0] * count,
    )


def point(batch: int, latency: float, *, enqueue: float = 0.0, **fields: Any) -> BenchPoint:
    taken = samples(latency, enqueue=enqueue)
    terms = msgspec.structs.replace(examples.measurement().contract, graph=False, streams=1)
    measurement: Measurement = msgspec.structs.replace(
        examples.measurement(),
        mode="latency",
        contract=terms,
        batch=batch,
        samples=taken,
        staged=taken,
        clocks=(),
        groups=(),
        discarded=0,
        discarded_samples=None,
        failure=None,
        **{"untrustworthy": (), "notes": (), **fields},
    )
    return BenchPoint(batch=batch, latency=measurement)


def report(*points: BenchPoint) -> BenchReport:
    made: BenchReport = msgspec.structs.replace(examples.report(), points=points, notes=())
    return made


def folder(*points: BenchPoint, **fields: Any) -> Collected:
    return Collected(folder="d", name="d", results={"result.json": report(*points)}, **fields)


def chosen(found: Collected) -> int:
    deployed = deployment_of(found)
    assert deployed is not None
    return deployed.point.batch


def steps(found: Collected) -> list[Step]:
    deployed = deployment_of(found)
    return next_steps(found, deployed, profiled(found, deployed.point.batch if deployed else None))


# ── what to deploy ──────────────────────────────────────────────────────────────────────────────────────


def test_the_highest_throughput_is_deployed() -> None:
    assert chosen(folder(point(1, 1.0), point(8, 2.0), point(32, 6.0))) == 32


def test_a_smaller_batch_with_nearly_the_same_throughput_is_deployed_instead() -> None:
    found = folder(point(1, 1.0), point(8, 2.0), point(32, 7.8))  # 4000 and 4103 samples/s
    deployed = deployment_of(found)
    assert deployed is not None
    assert (deployed.point.batch, deployed.is_smaller, deployed.quickest.batch) == (8, True, 1)


def test_figures_that_are_not_trustworthy_are_deployed_only_where_there_are_no_others() -> None:
    hot = point(32, 1.0, untrustworthy=("too hot",))
    assert chosen(folder(point(8, 2.0), hot)) == 8
    assert chosen(folder(hot)) == 32


def test_the_highest_throughput_is_claimed_among_trustworthy_figures_only() -> None:
    hot = point(32, 1.0, untrustworthy=("too hot",))
    lines, _ = report_page(folder(point(1, 1.0), point(8, 4.0), hot)).answer
    assert isinstance(lines, Lines)
    assert lines.lines[0] == "Batch 8 has the highest throughput that is trustworthy."


def test_without_measurements_there_is_nothing_to_deploy() -> None:
    assert deployment_of(resnet()) is None
    assert [(one.name, one.value) for one in report_page(resnet()).figures] == [
        ("layers at batch 8", "1.830")
    ]


@pytest.mark.parametrize(
    ("types", "name"),
    [
        (("float16", "float32", "int64"), "FP16"),
        (("float32", "int8"), "INT8"),
        (("bfloat16", "float8_e4m3fn"), "FP8"),
        (("float32", "int64"), "FP32"),
        (("int64",), ""),
    ],
)
def test_a_graph_is_called_after_its_narrowest_type(types: tuple[str, ...], name: str) -> None:
    assert precision_name(types) == name


def test_every_result_file_has_its_figures_under_its_name() -> None:
    results = {"a.json": report(point(1, 1.0)), "b.json": report(point(1, 2.0), point(8, 4.0))}
    fast, *_ = report_page(Collected(folder="d", name="d", results=results)).questions
    tables = [block for block in fast.answer if isinstance(block, Table)]
    assert {table.title: [row[:2] for row in table.rows] for table in tables} == {
        "a.json: own, tensorrt": [["1", 1.0]],
        "b.json: own, tensorrt": [["1", 2.0], ["8", 4.0]],
    }


def test_the_mark_says_the_worst_that_is_known() -> None:
    assert mark_of(folder(point(8, 1.0))).level == "good"
    assert mark_of(folder(point(1, 1.0), point(8, 1.0, untrustworthy=("too hot",)))).text == (
        "not trustworthy: batch 8"
    )
    assert mark_of(resnet()).text == "not measured"
    assert mark_of(folder(point(8, 1.0), manifest=on_another_backend())).level == "caution"


def on_another_backend() -> Any:
    """A manifest whose engines are not of the backend that was measured."""
    manifest = examples.manifest()
    engines = tuple(
        msgspec.structs.replace(
            engine,
            plan=msgspec.structs.replace(engine.plan, backend=Backend(name="tensorrt-rtx", version="1")),
        )
        for engine in manifest.engines
    )
    return msgspec.structs.replace(manifest, engines=engines, verdict=None)


# ── what to do next ─────────────────────────────────────────────────────────────────────────────────────


def test_at_most_three_steps_the_most_worthwhile_first() -> None:
    found = folder(point(1, 1.0, untrustworthy=("too hot",)), manifest=on_another_backend())
    found = msgspec.structs.replace(found, profiles=resnet().profiles)
    shown = steps(found)
    assert len(shown) == 3
    assert shown[0].what == "Measure the engines on a machine with a GPU"


def test_a_gpu_that_waits_for_the_host_gets_a_cuda_graph() -> None:
    waiting = point(8, 1.0, enqueue=0.6)
    assert "trtopt bench MODEL.onnx --graph --json d/graph.json" in [
        one.command for one in steps(folder(waiting))
    ]


def test_a_graph_that_could_not_be_captured_is_not_suggested_again() -> None:
    refused = point(8, 1.0, enqueue=0.6, notes=("measured without a CUDA graph: not capturable",))
    assert [one for one in steps(folder(refused)) if "--graph" in one.command] == []


def test_nothing_that_needs_a_gpu_is_suggested_on_a_cpu() -> None:
    found = folder(point(8, 1.0, enqueue=0.6))
    environment = msgspec.structs.replace(
        examples.report().environment,
        device=msgspec.structs.replace(examples.GPU, kind="cpu"),
        backend=Backend(name="onnxruntime", version="1"),
    )
    measured = msgspec.structs.replace(found.results["result.json"], environment=environment)
    found = msgspec.structs.replace(found, results={"result.json": measured}, profiles=resnet().profiles)
    told = " ".join(f"{one.what} {one.why} {one.command}" for one in steps(found))
    assert told
    for refused in ("--graph", "--lock-clocks", "--memory", "--precision", "--contract", "lint"):
        assert refused not in told


def test_throughput_that_still_rises_asks_for_larger_batches_of_the_same_model() -> None:
    found = folder(point(1, 1.0), point(8, 2.0))
    measured = msgspec.structs.replace(
        found.results["result.json"], argv=("trtopt", "bench", "my model.onnx", "--json", "x")
    )
    found = msgspec.structs.replace(found, results={"result.json": measured})
    commands = [one.command for one in steps(found)]
    assert "trtopt build 'my model.onnx' -o d-batches --batch 8,16,32" in commands


def test_larger_batches_are_built_as_the_folder_was() -> None:
    own = ("trtopt", "build", "my net.onnx", "-o", "d", "--batch=1,8", "--precision", "int8", "--force")
    manifest = msgspec.structs.replace(examples.manifest(), argv=(*own, "--data", "a b.npz", "--json", "-"))
    commands = [one.command for one in steps(folder(point(1, 1.0), point(8, 2.0), manifest=manifest))]
    told = "trtopt build 'my net.onnx' --precision int8 --data 'a b.npz' -o d-batches --batch 8,16,32"
    assert told in commands


def test_results_of_several_contracts_are_not_mixed_into_a_rise_of_throughput() -> None:
    settled, fast = report(point(8, 2.0), point(16, 3.9)), report(point(16, 0.5))
    found = Collected(folder="d", name="d", results={"a.json": settled, "serving.json": fast})
    assert [one for one in steps(found) if "--batch" in one.command] == []


def test_a_fixed_batch_is_opened_before_other_sizes_are_built() -> None:
    manifest = examples.manifest()
    inputs = tuple(msgspec.structs.replace(spec, shape=(8, *spec.shape[1:])) for spec in manifest.onnx.inputs)
    onnx = msgspec.structs.replace(manifest.onnx, inputs=inputs)
    fixed = msgspec.structs.replace(manifest, onnx=onnx, argv=("trtopt", "build", "m/net.onnx"))
    commands = [one.command for one in steps(folder(point(8, 1.0), manifest=fixed))]
    assert "trtopt rewrite m/net.onnx --dynamic-batch -o net-dynamic.onnx" in commands


def test_distrusted_figures_are_measured_again_on_their_terms_into_their_own_file() -> None:
    hot = report(point(8, 1.0, untrustworthy=("too hot",)))
    found = Collected(folder="d", name="d", results={"bench.json": hot})
    assert steps(found)[0].command == "trtopt bench MODEL.onnx --contract own --json d/bench.json"


def test_what_is_built_next_lies_beside_the_folder_however_it_is_named() -> None:
    found = msgspec.structs.replace(folder(point(1, 1.0), point(8, 2.0)), folder=".")
    assert "trtopt build MODEL.onnx -o ../d-batches --batch 8,16,32" in [one.command for one in steps(found)]


def test_throughput_that_has_settled_asks_for_none() -> None:
    assert [one for one in steps(folder(point(8, 2.0), point(16, 3.9))) if "--batch" in one.command] == []


@pytest.mark.parametrize(("share", "is_named"), [(0.02, False), (0.04, True)])
def test_unfused_layers_are_a_step_from_three_percent_of_the_time_on(share: float, is_named: bool) -> None:
    profile = resnet().profiles["profile.json"]
    engine = profile.engines[0]
    ms = share * engine.sum_ms
    unfused = (Unfused(fusion="Conv+Add", nodes=("a", "b"), reason="opaque", detail="inside c", ms=ms),)
    engine = msgspec.structs.replace(engine, unfused=unfused)
    profiles = {"profile.json": msgspec.structs.replace(profile, engines=(engine,))}
    found = folder(point(8, 2.0), point(16, 3.9), profiles=profiles)
    assert ("Make the graph fuse" in [one.what for one in steps(found)]) is is_named


def test_layers_that_hide_their_nodes_ask_for_kernels_until_they_are_there() -> None:
    found = resnet().profiles["profile.json"]
    hidden = msgspec.structs.replace(found.engines[1].coverage, time_opaque=0.99)
    engine = msgspec.structs.replace(found.engines[1], coverage=hidden)

    def commands(engine: EngineProfile) -> list[str]:
        profile = msgspec.structs.replace(found, engines=(engine,))
        measured = folder(point(8, 1.0), point(16, 1.99))
        shown = steps(msgspec.structs.replace(measured, profiles={"p.json": profile}))
        return [one.command for one in shown if "--kernels" in one.command]

    assert commands(engine) == ["trtopt profile MODEL.onnx --kernels -o d"]
    kernels = kernel_reports.report(kernel_reports.launches(0.4, 0.3, 0.2, 0.1))
    assert commands(msgspec.structs.replace(engine, kernels=kernels)) == []
