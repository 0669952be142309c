"""Kernels as text and in a trace."""

import json

from msgspec.structs import replace

from tests.unit.inspect.kernels.test_report import launches, report
from tests.unit.inspect.test_difference import engine
from trtopt.records import ProfileReport
from trtopt.report.kernels import kernel_lines
from trtopt.report.trace import trace


def test_the_sums_are_held_against_the_latency_and_unknown_time_is_stated() -> None:
    made = report(launches(0.6, 0.4, names=("gemm_fp16", "other")), latency_ms=1.05)
    assert kernel_lines(made) == [
        "kernels 1.000 ms and gaps 0.000 ms are 1.000 ms; latency without the tracer 1.050 ms, "
        "remainder +0.050 ms (+4.8%)",
        "1.000 ms (100%) of kernels belong to no known node",
        "types by kernel names: float16 60%, unknown 40%",
    ]


def test_kernels_have_a_track_for_each_stream_at_the_times_at_which_they_ran() -> None:
    made = report(launches(0.5, 0.25, gap=0.25))
    rows = (made.rows[0], replace(made.rows[1], stream=7))
    profile = replace(engine("a"), kernels=replace(made, rows=rows))
    whole = ProfileReport(created="", environment=None, model_sha256="", peaks=None, engines=(profile,))
    events = json.loads(trace(whole))["traceEvents"]
    names = [one["args"]["name"] for one in events if one["name"] == "thread_name"]
    assert names[-2:] == ["kernels, stream 0", "kernels, stream 7"]
    slices = [(one["tid"], one["ts"], one["dur"]) for one in events if one["ph"] == "X"]
    assert slices == [(16, 0.0, 500.0), (17, 750.0, 250.0)]
