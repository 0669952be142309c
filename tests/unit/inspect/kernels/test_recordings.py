"""Recordings of real engines, TensorRT 8.6.0 on an H200: three replays of a CUDA graph each, raw."""

from __future__ import annotations

import gzip
import json
from typing import Any

import msgspec
import onnx
import pytest

from tests.support.inspected import profiled
from tests.support.paths import DATA
from tests.unit.inspect.test_explanation import engine
from trtopt.inspect.explanation import difference
from trtopt.inspect.graph import read_graph
from trtopt.inspect.kernels.names import in_any_block
from trtopt.inspect.kernels.report import report_kernels
from trtopt.measure.loop.profiling_passes import merge_runs
from trtopt.records import (
    DevicePeaks,
    EngineDifference,
    KernelActivity,
    KernelPass,
    KernelReport,
    KernelRow,
    Peak,
    ProfiledLayer,
)

FOLDER = DATA / "kernels"


def report(name: str) -> KernelReport:
    found = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    runs = [[_activity(row, found["names"]) for row in run] for run in found["runs"]]
    launches, different = merge_runs(runs)
    assert different == 0
    model = onnx.load_from_string(gzip.decompress((FOLDER / f"{found['graph']}.onnx.gz").read_bytes()))
    rates = {"float16": Peak(value=found["peak_float16"], source=""), "int8": Peak(value=1.979e15, source="")}
    return report_kernels(
        KernelPass(runs=len(runs), launches=launches, graph=True),
        msgspec.convert(found["layers"], list[ProfiledLayer]),
        read_graph(model, {name: tuple(shape) for name, shape in found["shapes"].items()}),
        DevicePeaks(device="H200", bandwidth=Peak(value=4.8e12, source=""), flops=rates),
        found["latency_ms"],
    )


def _activity(row: list[Any], names: list[str]) -> KernelActivity:
    kind, name, start, end = row[0], names[row[1]], row[2], row[3]
    if kind != "kernel":
        kind = "memset" if name == "memset" else "copy"
        return KernelActivity(kind=kind, name=name, start_ns=start, end_ns=end, nbytes=row[7])
    return KernelActivity(
        kind="kernel", name=name, start_ns=start, end_ns=end, stream=row[5], graph_node=row[6],
        grid=tuple(row[7]), block=tuple(row[8]), registers=row[9], shared_bytes=row[10] + row[11],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "count"), [("bert-b1", 87), ("bert-b32", 126), ("vit-b1", 125), ("r50-b1", 58)]
)
def test_kernels_are_attributed_and_reconcile_with_the_latency(name: str, count: int) -> None:
    made = report(name)
    assert len(made.rows) == count
    assert made.unknown_ms < 0.02 * made.sum_ms
    assert made.sum_ms == pytest.approx(made.busy_ms, rel=0.01)  # overlapping ones count once
    assert made.remainder_ms is not None
    assert made.latency_ms is not None
    assert abs(made.remainder_ms) < 0.05 * made.latency_ms
    assert sum(group.ms for group in made.by_block) == pytest.approx(made.sum_ms)


def serving(made: KernelReport, word: str) -> list[KernelRow]:
    """Rows of a node, but for the reformat behind all nodes."""
    return [row for row in made.rows if len(row.nodes) < 100 and any(word in node for node in row.nodes)]


@pytest.mark.parametrize("name", ["bert-b1", "bert-b32"])
def test_each_product_of_bert_has_its_kernels(name: str) -> None:
    made = report(name)
    for layer in range(12):
        stem = f"/layer.{layer}/"
        assert [row.family for row in serving(made, f"{stem}attention/self/Softmax")] == ["attention"]
        (merged,) = serving(made, f"{stem}attention/self/query/MatMul")
        assert len(merged.nodes) == 3
        (wide,) = serving(made, f"{stem}intermediate/dense/MatMul")
        (narrow,) = serving(made, f"{stem}output/dense/MatMul")
        assert (wide.family, narrow.family) == ("product", "product")
        assert wide.flops == narrow.flops  # 768 by 3072 and back
        assert "normalisation" in [row.family for row in serving(made, f"{stem}output/LayerNorm")]
    mask = next(row for row in made.rows if "IotSli" in row.name)
    assert any(node.endswith("GreaterOrEqual") for node in mask.nodes)


def test_a_gelu_is_a_kernel_of_its_own_at_32_and_part_of_a_product_at_1() -> None:
    assert [
        row.family for row in serving(report("bert-b32"), "/layer.3/intermediate/intermediate_act_fn/Erf")
    ] == ["pointwise"]
    assert serving(report("bert-b1"), "intermediate_act_fn/Erf") == []


def test_the_same_nodes_of_all_encoder_layers_are_one_group_and_take_the_time() -> None:
    made = report("bert-b32")
    first, second, third, *_ = made.by_block
    assert (first.key, first.launches) == ("/m/encoder/layer.*/output/dense/MatMul", 12)
    assert (second.key, second.launches) == ("/m/encoder/layer.*/intermediate/dense/MatMul", 12)
    assert third.key == "/m/encoder/layer.*/attention/self/query/MatMul + key/MatMul + value/MatMul"
    assert first.peak_share == pytest.approx(0.56, abs=0.01)
    assert next(group for group in made.by_name if group.key == "mha*").launches == 12
    assert [group.key for group in made.by_family[:3]] == ["product", "pointwise", "attention"]


def test_a_kernel_that_replaces_another_in_all_encoder_layers_is_one_change() -> None:
    changes = explained(report("bert-b1"), report("bert-b32")).replaced
    wide = [one for one in changes if one.nodes == ("/m/encoder/layer.*/output/dense/MatMul",)]
    assert [one.blocks for one in wide] == [12]
    assert len(changes) < 20


def test_in_int8_each_product_of_bert_has_its_kernel_and_what_lies_beside_q_and_dq_takes_longer() -> None:
    made, half = report("bert-int8-b32"), report("bert-b32")
    for layer in range(12):
        stem = f"bert.encoder.layer.{layer}."
        names = ("attention.self.query", "attention.output.dense", "intermediate.dense", "output.dense")
        serving_products = (row for name in names for row in serving(made, f"{stem}{name}/MatMul"))
        rows = [row for row in serving_products if row.family != "weight copy"]
        assert [(row.family, row.dtype) for row in rows] == [("product", "int8")] * 4
        assert len(rows[0].nodes) == 3  # with key and value
        assert all(row.peak_share is not None and 0.18 < row.peak_share < 0.51 for row in rows)
    whole, second_pass = serving(made, "qa_outputs/MatMul")  # one product, split along the inner size
    assert (whole.family, second_pass.family) == ("product", "split-k")
    assert made.unknown_ms == pytest.approx(0.0127 * made.sum_ms, rel=0.01)  # memsets, and the mask
    pointwise, of_half = (
        next(group.ms for group in one.by_family if group.key == "pointwise") for one in (made, half)
    )
    assert pointwise > 1.3 * of_half


@pytest.mark.parametrize(("name", "share"), [("bert-int8-b8", 0.173), ("bert-int8-b32", 0.0831)])
def test_the_weights_of_q_k_and_v_are_copied_together_in_every_inference(name: str, share: float) -> None:
    made = report(name)
    for layer in range(12):
        merged = [
            f"bert.encoder.layer.{layer}.attention.self.{one}/MatMul" for one in ("query", "key", "value")
        ]
        rows = [row for row in made.rows if list(row.nodes) == merged]
        copies = [row for row in rows if row.family == "weight copy"]
        assert [row.family for row in rows if row not in copies] == ["product"]
        assert sorted(row.name.rsplit("_", 1)[-1] for row in copies) == ["Mov", "Mov", "Mov", "Res"]
        assert max(row.start_ms for row in copies) < next(row.start_ms for row in rows if row not in copies)
    copied = next(group for group in made.by_family if group.key == "weight copy")
    assert copied.launches == 48
    assert copied.ms == pytest.approx(share * made.sum_ms, rel=0.01)
    assert any(note.startswith(f"{share:.0%} of the time copies the weights") for note in made.notes)


def explained(a: KernelReport, b: KernelReport) -> EngineDifference:
    """Of engines whose layers are one that hides all nodes of the kernels."""
    sides = []
    for made in (a, b):
        nodes = tuple(dict.fromkeys(name for row in made.rows for name in row.nodes))
        (layer,) = {row.layer for row in made.rows if row.family == "product"}
        bare = engine("a", profiled(layer, " ".join(nodes), is_opaque=True))
        sides.append(msgspec.structs.replace(bare, kernels=made, latency_ms=made.latency_ms))
    return difference(*sides)


def named_alike(made: KernelReport) -> KernelReport:
    """The nodes of both recorded BERTs by one name each: `bert.encoder.layer.0.….MatMul`."""
    rows = [
        msgspec.structs.replace(
            row, nodes=tuple(name.replace("/m/", "bert.").replace("/", ".") for name in row.nodes)
        )
        for row in made.rows
    ]
    return msgspec.structs.replace(made, rows=tuple(rows))


def test_causes_add_up_to_the_change_of_latency_and_name_what_int8_gains_and_loses() -> None:
    floats, quantised = named_alike(report("bert-b32")), named_alike(report("bert-int8-b32"))
    assert floats.latency_ms is not None
    assert quantised.latency_ms is not None
    found = explained(floats, quantised).causes
    assert sum(one.a_ms for one in found) == pytest.approx(floats.latency_ms)
    assert sum(one.b_ms for one in found) == pytest.approx(quantised.latency_ms)
    assert sum(one.a_parts for one in found) == len(floats.rows)
    by_name = {one.cause: one for one in found}
    assert by_name["products, float16 → int8: faster"].cost_ms < -0.1
    assert by_name["copies of weights"].a_parts == 0
    assert by_name["copies of weights"].b_parts > 0
    assert all(one.cost_ms == 0 for one in explained(floats, floats).causes)


def test_a_planted_cause_is_the_only_one_that_costs() -> None:
    made = report("bert-b32")
    assert made.latency_ms is not None
    row = next(row for row in made.rows if row.family == "product")
    for family, cause in (("reformat", "reformats, Q and DQ"), ("memset", "memory sets")):
        planted = msgspec.structs.replace(
            row, name="planted", family=family, nodes=(), ms=0.5, overlap_ms=0.0, gap_ms=0.0
        )
        slower = msgspec.structs.replace(made, rows=(*made.rows, planted), latency_ms=made.latency_ms + 0.5)
        costs = {one.cause: one.cost_ms for one in explained(made, slower).causes}
        assert costs.pop(cause) == pytest.approx(0.5)
        assert max(map(abs, costs.values())) < 1e-9
    slow = msgspec.structs.replace(row, ms=row.ms + 0.5)
    rows = tuple(slow if one is row else one for one in made.rows)
    slower = msgspec.structs.replace(made, rows=rows, latency_ms=made.latency_ms + 0.5)
    first = explained(made, slower).causes[0]
    assert (first.cause, first.nodes[:1]) == ("products, float16: slower", in_any_block(row.nodes)[:1])
    assert first.cost_ms == pytest.approx(0.5, abs=0.05)  # its like became no faster
