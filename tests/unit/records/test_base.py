"""What all records have in common, and files of this and of earlier schemas."""

import json

import pytest

from tests.support import examples
from tests.support.paths import DATA
from trtopt.records import (
    BENCH_SCHEMA,
    BUILD_SCHEMA,
    BatchPlan,
    BenchReport,
    CompareReport,
    Manifest,
    ProfileReport,
    Record,
    SweepReport,
    kind_of,
    read_versioned,
    to_json,
)
from trtopt.records.build import check_manifest

OLD = DATA / "schema_1"
PRESENT = {BenchReport: BENCH_SCHEMA, Manifest: BUILD_SCHEMA}


def document(kind: type[Record]) -> dict[str, object]:
    record = examples.report() if kind is BenchReport else examples.manifest()
    found = json.loads(to_json(record))
    assert isinstance(found, dict)
    return found


def test_a_result_file_of_schema_1_is_read() -> None:
    report = read_versioned((OLD / "bench.json").read_bytes(), BenchReport)
    assert report.schema == BENCH_SCHEMA
    assert [point.batch for point in report.points] == [1, 8]
    assert [len(point.latency.samples.latency_ms) for point in report.points] == [257, 34]
    assert report.points[0].latency.stages is report.points[0].latency.samples
    assert report.points[0].latency.contract.name == "trtexec-11+no-graph"


def test_a_manifest_of_schema_1_is_read() -> None:
    manifest = read_versioned((OLD / "manifest.json").read_bytes(), Manifest)
    assert manifest.schema == BUILD_SCHEMA
    assert [engine.path for engine in manifest.engines] == ["batch1.onnx", "batch8.onnx"]


def test_fields_that_were_renamed_since_are_found_under_their_old_names() -> None:
    old = DATA / "schema_2"
    bench = read_versioned((old / "bench.json").read_bytes(), BenchReport)
    assert set(bench.points[0].latency.samples.inference_stream) == {0}
    profile = read_versioned((old / "profile.json").read_bytes(), ProfileReport)
    assert profile.engines[0].layers[0].requested_dtype == "float32"
    assert profile.engines[0].receipt.weights_requested == {"float32": 1.0}
    plan = read_versioned((old / "plan.json").read_bytes(), BatchPlan)
    assert plan.serving_cost is not None
    assert plan.serving_cost.from_trials == 634
    assert plan.serving_cost.beyond is not None
    compared = read_versioned((old / "compare.json").read_bytes(), CompareReport)
    assert [turns.name for turns in compared.runs[0].turns] == ["A", "B"]
    manifest = read_versioned((old / "manifest.json").read_bytes(), Manifest)
    assert [engine.plan.multi_profile for engine in manifest.engines] == [(), ()]
    sweep = read_versioned((old / "sweep.json").read_bytes(), SweepReport)
    assert len(sweep.measured) == 2


def test_a_field_that_left_is_dropped_from_earlier_files_alone() -> None:
    text = json.loads((DATA / "schema_2" / "plan.json").read_text()) | {"packing": {"row": 32}}
    plan = read_versioned(json.dumps(text).encode(), BatchPlan)
    present = json.loads(to_json(plan)) | {"packing": None}
    with pytest.raises(ValueError, match="packing"):
        read_versioned(json.dumps(present).encode(), BatchPlan)


def test_an_earlier_manifest_is_read_without_what_cut_graphs_and_refused_with_a_chain() -> None:
    text = json.loads((DATA / "schema_2" / "manifest.json").read_text())
    for engine in text["engines"]:
        engine["chain"], engine["plan"]["splits"] = [], []
    manifest = read_versioned(json.dumps(text).encode(), Manifest)
    check_manifest(manifest)
    text["engines"][0] |= {"path": "batch1.chain", "chain": [{"batch": 1}]}
    with pytest.raises(ValueError, match=r"batch1\.chain"):
        check_manifest(read_versioned(json.dumps(text).encode(), Manifest))


def test_what_a_model_calls_its_tensors_is_no_field() -> None:
    text = json.loads((DATA / "schema_2" / "bench.json").read_text())
    text["points"][0]["latency"]["shapes"] = {"lane": [1, 8, 8], "several": [1]}
    report = read_versioned(json.dumps(text).encode(), BenchReport)
    assert report.points[0].latency.shapes == {"lane": (1, 8, 8), "several": (1,)}


@pytest.mark.parametrize("kind", PRESENT)
def test_a_file_of_a_later_schema_is_refused_by_it_whatever_else_it_holds(kind: type[Record]) -> None:
    name, _, version = PRESENT[kind].partition("/")
    later = document(kind) | {"schema": f"{name}/{int(version) + 1}", "a field of later": 1}
    with pytest.raises(ValueError, match=rf"{name}/{int(version) + 1}, written by a newer trtopt"):
        read_versioned(json.dumps(later).encode(), kind)


@pytest.mark.parametrize("kind", PRESENT)
@pytest.mark.parametrize("schema", ["trtopt.other/1", "trtopt.bench", "bench/1", "", "trtopt.build/0", "/1"])
def test_a_file_of_another_kind_is_refused_with_what_it_says(kind: type[Record], schema: str) -> None:
    with pytest.raises(ValueError, match=rf"of schema '{schema}', not {PRESENT[kind]}"):
        read_versioned(json.dumps(document(kind) | {"schema": schema}).encode(), kind)


@pytest.mark.parametrize("kind", PRESENT)
@pytest.mark.parametrize("schema", [None, 1, ["trtopt.bench/1"]])
def test_a_file_that_says_no_schema_is_refused(kind: type[Record], schema: object) -> None:
    with pytest.raises(ValueError, match="it has no schema"):
        read_versioned(json.dumps(document(kind) | {"schema": schema}).encode(), kind)


@pytest.mark.parametrize("kind", PRESENT)
def test_an_unknown_field_in_a_file_of_this_schema_is_named(kind: type[Record]) -> None:
    with pytest.raises(ValueError, match="unknown field `edited`"):
        read_versioned(json.dumps(document(kind) | {"edited": 1}).encode(), kind)


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b"{", b'{"schema": "trtopt.bench/1"', b"\xff"])
def test_what_is_no_such_file_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_versioned(text, BenchReport)
    with pytest.raises(ValueError, match=r"."):
        read_versioned(b'{"schema":' * 100_000, BenchReport)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b'{"schema": "trtopt.profile/1", "created": ""}', "trtopt.profile"),
        (b'{"created": "", "schema": "trtopt.bench/99"}', "trtopt.bench"),
        (b'{\n  "schema":"trtopt.bench/2","created":"20', "trtopt.bench"),
        (b'{"schema": "other/1"}', None),
        (b'{"schema": "other/1', None),
        (b'{"schema": 1}', None),
        (b'["trtopt.bench/1"]', None),
        (b"[" * 100_000, None),
        (b"", None),
    ],
)
def test_a_file_says_what_kind_it_is_even_when_it_was_cut_short(text: bytes, kind: str | None) -> None:
    assert kind_of(text) == kind


class Pass(Record, frozen=True, kw_only=True):
    name: str
    shape: tuple[int, ...]
    latency_ms: list[float]


def test_records_show_all_their_fields_and_only_the_length_of_long_sequences() -> None:
    shown = repr(Pass(name="latency", shape=(8, 3, 224, 224), latency_ms=[0.25] * 4000))
    assert shown == "Pass(name='latency', shape=(8, 3, 224, 224), latency_ms=<4000 items>)"
