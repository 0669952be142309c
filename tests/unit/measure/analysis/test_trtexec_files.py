"""Files of queries that trtexec exported, whole and damaged."""

import json
from typing import Any

import msgspec
import pytest

from tests.support import examples
from trtopt.errors import UsageError
from trtopt.measure.analysis.result_comparison import compare_times
from trtopt.measure.analysis.trtexec_files import Times, device_latency, read_trtexec

QUERY = {
    "startEnqMs": 1.0,
    "endEnqMs": 1.25,
    "startH2dMs": 1.0,
    "endH2dMs": 1.1,
    "startComputeMs": 1.1,
    "endComputeMs": 1.6,
    "startD2hMs": 1.6,
    "endD2hMs": 1.65,
    "h2dMs": 0.1,
    "computeMs": 0.5,
    "d2hMs": 0.05,
    "latencyMs": 0.65,
}
"""TensorRT 8.6 and 10 write these."""


def times(name: str, latency: float, count: int = 200) -> Times:
    return Times(name, (latency,) * count)


def read(document: Any) -> Times:
    return read_trtexec(json.dumps(document).encode(), "times.json")


def test_times_are_the_device_latencies_of_all_queries() -> None:
    assert read([QUERY, QUERY | {"computeMs": 0.6, "latencyMs": 0.75}]) == Times("times.json", (0.65, 0.75))


def test_the_older_layout_with_its_end_to_end_times_is_read() -> None:
    assert read([QUERY | {"endToEndMs": 0.9}]) == Times("times.json", (0.65,))


def test_figures_of_six_digits_need_not_add_up_to_more() -> None:
    """trtexec prints floats with six significant digits."""
    query = QUERY | {"h2dMs": 0.100123, "computeMs": 123.456, "d2hMs": 0.05, "latencyMs": 123.606}
    assert read([query]) == Times("times.json", (123.606,))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "no queries"),
        ([QUERY | {"latencyMs": 0.5}], "not the sum 0.65 of its parts"),
        ([QUERY | {"h2dMs": -0.1, "latencyMs": 0.45}], "not the sum"),
        ([QUERY | {"computeMs": "fast"}], "computeMs"),
        ([{key: value for key, value in QUERY.items() if key != "d2hMs"}], "d2hMs"),
        ([1, 2, 3], "not as trtexec exports"),
        ([{"count": 100}, {"name": "conv", "averageMs": 0.5}], "it is a profile"),
    ],
)
def test_what_is_no_such_file_or_contradicts_itself_is_refused(document: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(document)


def test_every_cut_of_a_file_is_refused() -> None:
    text = json.dumps([QUERY, QUERY]).encode()
    for end in range(len(text)):
        with pytest.raises(ValueError, match=r"."):
            read_trtexec(text[:end], "cut")
    with pytest.raises(ValueError, match=r"nested too deeply|not as trtexec"):
        read_trtexec(b"[" * 200_000, "deep")


def test_of_trtopts_own_samples_the_same_figure_is_taken() -> None:
    """H2D 0.5, compute 1 and 1.25, D2H 0.25."""
    assert device_latency(examples.report().points[0]) == [1.75, 2.0]


def test_two_files_of_trtexecs_are_compared_and_no_one_vouches_for_their_terms() -> None:
    found = compare_times(times("a", 1.0), times("b", 1.2), batch=None, assumed=None, threshold=0.01)
    assert [row.comparison.verdict.value for row in found.rows] == ["SLOWER"]
    assert found.rows[0].batch is None
    assert "not verified" in found.notes[0]
    assert found.has_regression


@pytest.mark.parametrize(("assumed", "message"), [(None, "names none$"), ("trtexec-10", "under trtexec-10$")])
def test_a_result_file_is_compared_with_one_only_under_its_own_contract(
    assumed: str | None, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        compare_times(examples.report(), times("b", 1.9), batch=None, assumed=assumed, threshold=0.01)
    assert "contract is own" in caught.value.problem
    assert "--assume-contract own" in caught.value.remedy
    found = compare_times(examples.report(), times("b", 1.9), batch=None, assumed="own", threshold=0.01)
    assert (found.rows[0].batch, found.rows[0].a_ms) == (8, 1.875)
    assert found.rows[0].comparison.verdict.value == "UNDECIDED"  # two samples


def test_one_of_several_batch_sizes_must_be_named() -> None:
    point = examples.report().points[0]
    both = msgspec.structs.replace(
        examples.report(), points=(point, msgspec.structs.replace(point, batch=16))
    )
    with pytest.raises(UsageError, match="has batches 8, 16"):
        compare_times(both, times("b", 1.9), batch=None, assumed="own", threshold=0.01)
    assert compare_times(both, times("b", 1.9), batch=16, assumed="own", threshold=0.01).rows[0].batch == 16
