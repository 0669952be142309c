import re
from collections.abc import Iterable

import msgspec
from rich.console import Console

from tests.support import examples
from tests.support.inspected import graph, layer, node, profiled, stored, zeros
from tests.support.pages import point_of, resnet
from trtopt.inspect.costs import peaks_of
from trtopt.inspect.inspector import EngineLayer, read_inspector
from trtopt.inspect.profile import profile_point
from trtopt.records import (
    BenchPoint,
    EngineProfile,
    LayerTime,
    ProfileReport,
)
from trtopt.report.profile import nodes_text, peak_lines, profile_notes, profile_view

GRAPH = graph(
    node("Conv", "x w", "a", "conv"),
    node("Relu", "a", "r", "relu"),
    node("Softmax", "r", "y", "softmax"),
    inputs={"x": (1, 3, 8, 8)},
    weights={"w": zeros(4, 3, 1, 1)},
    dtype="float16",
)
LAYERS = (
    layer("conv", weights_dtype="float32", weights_count=12),
    layer("{ForeignNode[relu...softmax]}", "Myelin", inputs="a", outputs="y"),
)


def point(description: Iterable[EngineLayer]) -> BenchPoint:
    return point_of((LayerTime(name=one.name, ms=[2.0]) for one in description), compute_ms=3.0)


def shown(*engines: EngineProfile, width: int = 200, **rest: object) -> str:
    report = ProfileReport(
        created="",
        environment=examples.report().environment,
        model_sha256="",
        peaks=None,
        engines=engines,
        **rest,
    )  # type: ignore[arg-type]
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(profile_view(report).terminal(verbose=True))
        console.print(*(note.text for note in profile_notes(report)))
    return capture.get()


def test_a_profile_is_reported_line_by_line() -> None:
    description = LAYERS
    text = shown(profile_point(point(description), description, GRAPH, peaks_of("NVIDIA H200")))
    assert "batch 1: 2 layers, 4.000 ms in all (medians)" in text
    assert "latency without the profiler 3.000 ms: the layers' sum differs by +1.000 ms (+33.3%)" in text
    assert "relu + softmax" in text
    assert "50.0% of the time lies in layers that hide their nodes" in text
    assert "→ Myelin" not in text
    assert re.search(r"Conv\+activation +opaque +1 +[0-9.]+ +conv \+ relu: inside \{ForeignNode\[", text)
    assert (
        "precision: time float32 50.0%, unknown 50.0%; weights float32 100.0% (requested: float16 100.0%)"
        in text
    )
    assert re.search(r"float16 +float32 +100\.0% +50\.0% +fell back +conv", text)
    assert "1. 2.0000 ms above its floor: conv" in text


def test_a_reformat_is_not_taken_for_the_layer_that_it_feeds() -> None:
    reformat = layer(
        "Reformatting CopyNode for Input Tensor 0 to conv", "Reformat", inputs="x", outputs="copied"
    )
    description = (reformat, *LAYERS)
    text = shown(profile_point(point(description), description, GRAPH, peaks_of("NVIDIA H200")))
    assert "above its floor: reformat at conv" in text
    assert "above its floor: conv" in text


def test_quantised_layers_are_called_after_what_they_do() -> None:
    names = ("w_QuantizeLinear", "conv", "relu")
    ops = ("QuantizeLinear", "Conv", "Relu")
    assert nodes_text(profiled("l", " ".join(names), onnx_ops=ops)) == "conv + relu"
    assert nodes_text(profiled("l", "w_QuantizeLinear", onnx_ops=ops[:1])) == "w_QuantizeLinear"


def test_names_that_a_terminal_is_too_narrow_for_are_told_to_be_cut() -> None:
    description = read_inspector(stored("r50_fp16"))
    lines = shown(profile_point(point(description), description, GRAPH, None), width=80).splitlines()
    rows = [line for line in lines if "CaskConvolution" in line and "by kind" not in line]
    assert rows
    assert all(line.rstrip().endswith("…") and len(line) == 80 for line in rows)


def test_no_name_pushes_a_figure_out_of_a_narrow_terminal() -> None:
    report = resnet().profiles["profile.json"]
    first, *others = report.engines
    plugin = msgspec.structs.replace(first.fusions[0], kind="CustomPluginDynamic" * 5)
    first = msgspec.structs.replace(first, fusions=(plugin, *first.fusions))
    text = shown(first, *others, width=80)
    assert not re.findall(r"(?:^| )[+-]?\d+(?:\.\d*)?…", text, re.MULTILINE)
    assert re.search(r"CustomPlugin\S+… +\d+ +0\.\d+ +Conv", text)
    rows = [line for line in text.splitlines() if re.search(r"(compute|memory) +float16 Cask", line)]
    assert rows
    assert all("/" in row and row.rstrip().endswith("…") for row in rows)


def test_why_candidates_were_not_fused_is_there_in_full_on_a_narrow_terminal() -> None:
    description = LAYERS
    text = shown(profile_point(point(description), description, GRAPH, None), width=80)
    assert "softmax]}" in text


def test_peaks_are_reported_without_exponents() -> None:
    lines = peak_lines(peaks_of("NVIDIA H200"))
    assert lines[1].startswith("peak rate of float32 494 TFLOP/s")
    assert any("1,979 TFLOP/s" in line for line in lines)


def test_a_real_engines_layers_are_reported_under_their_own_names() -> None:
    description = read_inspector(stored("r50_fp16"))
    text = shown(profile_point(point(description), description, GRAPH, None))
    assert "batch 1: 60 layers, 120.000 ms in all" in text
    assert "by kind: CaskConvolution" in text
    assert "by type: float16" in text


def test_layers_of_myelins_own_names_are_reported_by_what_they_cover() -> None:
    layers = (layer("__myl_Conv_myl0_1", weights_dtype="float32", weights_count=12, onnx="conv relu"),)
    made = profile_point(point(layers), layers, GRAPH, None)
    assert re.search(r"float16 +float32 .* fell back +conv \+ relu", shown(made))
