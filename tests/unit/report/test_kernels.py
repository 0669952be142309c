"""Kernels as text and in a trace."""

import json
import re
from collections.abc import Sequence
from io import StringIO

from msgspec.structs import replace
from rich.console import Console

from tests.support import examples
from tests.unit.inspect.kernels.test_report import GEMM, NAMES, launches, report
from tests.unit.inspect.test_explanation import engine
from trtopt.records import ProfileReport
from trtopt.report.profile import kernel_blocks, kernel_lines
from trtopt.report.trace import trace
from trtopt.report.view import Block, View


def test_the_time_and_the_sums_come_first_then_how_well_it_is_known_and_in_which_types() -> None:
    made = report(launches(0.6, 0.4, names=("gemm_fp16", "other")), latency_ms=1.05)
    assert kernel_lines(made) == [
        "time by what kernels do: product 60.0%, other 40.0%",
        "kernels 1.000 ms and gaps 0.000 ms are 1.000 ms; latency without the tracer 1.050 ms, "
        "remainder +0.050 ms (+4.8%)",
        "confidence, by time: layers certain 100%; ONNX nodes unknown 100%",
        "types by kernel names: products float16 100%; other kernels unknown 100%",
    ]


def shown(blocks: Sequence[Block], width: int = 80) -> str:
    console = Console(width=width, file=StringIO())
    console.print(View("", blocks))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_long_names_push_no_figure_out_of_a_narrow_terminal() -> None:
    made = report(launches(0.4, 0.3, 0.2, 0.1, names=(GEMM + "_trt" * 30, *NAMES[1:])))
    text = shown(kernel_blocks(1, made))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "0.4000   40.0%         1        –  likely      q + k + v" in text
    assert "0.4000  40.0%        1       – likely     sm80_xmma_gemm" in text


def test_what_a_table_leaves_out_is_one_row_of_it() -> None:
    names = [f"kernel{letter}" for letter in "abcdefghijkl"]
    text = shown(kernel_blocks(1, report(launches(*[0.1] * 12, names=tuple(names)))))
    assert re.search(r"0\.2000 +16\.7% +2 +2 more", text)


def test_kernels_have_a_track_for_each_stream_at_the_times_at_which_they_ran() -> None:
    made = report(launches(0.5, 0.25, gap=0.25))
    rows = (made.rows[0], replace(made.rows[1], stream=7))
    profile = replace(engine("a"), kernels=replace(made, rows=rows))
    whole = ProfileReport(
        created="", environment=examples.report().environment, model_sha256="", peaks=None, engines=(profile,)
    )
    events = json.loads(trace(whole))["traceEvents"]
    names = [one["args"]["name"] for one in events if one["name"] == "thread_name"]
    assert names[-2:] == ["kernels, stream 0", "kernels, stream 7"]
    slices = [(one["tid"], one["ts"], one["dur"]) for one in events if one["ph"] == "X"]
    assert slices == [(16, 0.0, 500.0), (17, 750.0, 250.0)]


def test_slices_of_one_track_do_not_overlap() -> None:
    made = report(launches(0.5, 0.25, 0.25, gap=-0.1))
    profile = replace(engine("a"), kernels=made)
    whole = ProfileReport(
        created="", environment=examples.report().environment, model_sha256="", peaks=None, engines=(profile,)
    )
    events = json.loads(trace(whole))["traceEvents"]
    names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    placed = [names[one["tid"]] for one in events if one["ph"] == "X"]
    stream = "kernels, stream 0"
    assert placed == [stream, f"{stream}, overlapping", stream]
