"""`trtopt explain` on ONNX Runtime: a model in FP32 against its quantised graph, and saved profiles."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

import trtopt
from tests.support.command_line import DIGITS, CommandLine
from tests.support.networks import Net
from tests.unit.inspect.test_explanation import kernels, row
from trtopt.api import explain, profile
from trtopt.errors import ArtifactError, UsageError
from trtopt.records import Explanation, ProfileReport, read_versioned, to_json


def saved(report: ProfileReport, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "profile.json").write_bytes(to_json(report))
    return folder


@pytest.fixture(scope="module")
def in_fp32(cpu_build: Path) -> ProfileReport:
    return profile(cpu_build, duration=0.1)


def test_causes_of_a_quantised_graph_add_up_and_have_its_q_and_dq(trtopt_cli: CommandLine) -> None:
    quantised = trtopt_cli.folder / "int8.onnx"
    trtopt.quantize(DIGITS, quantised, precision="int8", data=DIGITS.with_name("heldout.npz"), target="8.6")
    options = ("--batch", "8", "--duration", "0.1", "--json", "e.json")
    done = trtopt_cli("explain", DIGITS, quantised, *options)
    assert done.returncode == 0, done.stderr
    found = read_versioned((trtopt_cli.folder / "e.json").read_bytes(), Explanation)
    (one,) = found.engines
    assert (one.batch, one.parts) == (8, "layers")
    assert sum(cause.a_ms for cause in one.causes) == pytest.approx(one.a_ms)
    assert sum(cause.b_ms for cause in one.causes) == pytest.approx(one.b_ms)
    by_name = {cause.cause: cause for cause in one.causes}
    pairs = by_name["reformats, Q and DQ"]
    assert pairs.b_parts > pairs.a_parts
    assert sum(cause.b_parts for name, cause in by_name.items() if name.startswith("products")) == 10


def test_saved_profiles_are_explained_without_measuring(in_fp32: ProfileReport, tmp_path: Path) -> None:
    a = saved(in_fp32, tmp_path / "a")
    found = explain(a, a / "profile.json", batch=8)
    assert [one.batch for one in found.engines] == [8]
    assert [cause.cost_ms for one in found.engines for cause in one.causes if cause.cost_ms] == []
    assert [one.batch for one in explain(a, a).engines] == [1, 8]
    with pytest.raises(UsageError, match="budget"):
        explain(a, a, budget="1m")
    with pytest.raises(UsageError, match="duration"):
        explain(a, a, duration=2.0)


def test_profiles_of_no_common_batch_or_of_another_model_are_refused(
    in_fp32: ProfileReport, tmp_path: Path
) -> None:
    first, second = (msgspec.structs.replace(in_fp32, engines=(one,)) for one in in_fp32.engines)
    with pytest.raises(ArtifactError, match="A has batch 1, B batch 8"):
        explain(saved(first, tmp_path / "1"), saved(second, tmp_path / "8"))
    content = json.loads(to_json(in_fp32))
    for engine in content["engines"]:
        for layer in engine["layers"]:
            layer["onnx_nodes"] = [f"other{name}" for name in layer["onnx_nodes"]]
    (tmp_path / "other.json").write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match="another model"):
        explain(tmp_path / "1", tmp_path / "other.json")


def test_a_profile_of_other_engines_in_a_build_folder_is_refused(
    cpu_build: Path, in_fp32: ProfileReport, trtopt_cli: CommandLine
) -> None:
    engine = in_fp32.engines[0]
    other = msgspec.structs.replace(engine.engine, sha256="0" * 64)
    stale = msgspec.structs.replace(in_fp32, engines=(msgspec.structs.replace(engine, engine=other),))
    folder = trtopt_cli.folder / "build"
    folder.mkdir()
    for file in cpu_build.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    saved(stale, folder)
    assert "another engine" in trtopt_cli.fails(1, "explain", folder, folder)
    assert "does not exist" in trtopt_cli.fails(2, "explain", folder, "nowhere")
    (trtopt_cli.folder / "profile.json").write_text("{}")
    assert "read as a profile" in trtopt_cli.fails(1, "explain", "profile.json", "profile.json")


GATES = "gates of squeeze-and-excitation that B has in float between INT8"


def gated_builds(folder: Path) -> tuple[Path, Path]:
    """A model with a gate of squeeze-and-excitation in FP32, and in INT8 with that gate in float."""
    net = Net(17, x=("N", 32, 14, 14))
    maps = net.node("Relu", "relu", net.conv("conv1", "x", 32, 32))
    signal = net.conv("reduce", net.node("GlobalAveragePool", "pool", maps), 32, 8, 1)
    signal = net.conv("expand", net.node("Relu", "inner", signal), 8, 32, 1)
    gated = net.node("Mul", "gated", maps, net.node("Sigmoid", "sigmoid", signal))
    onnx.save(net.model(net.conv("conv2", gated, 32, 32)), folder / "se.onnx")
    samples = np.random.default_rng(0).normal(size=(16, 32, 14, 14)).astype(np.float32)
    np.savez(folder / "se.npz", x=samples)
    options = {"backend": "onnxruntime", "batch": 1}
    trtopt.build(folder / "se.onnx", folder / "a", **options)
    data = folder / "se.npz"
    trtopt.build(folder / "se.onnx", folder / "b", precision="int8", data=data, verdict=False, **options)
    return folder / "a", folder / "b"


def test_remedies_are_built_and_take_turns_with_both(trtopt_cli: CommandLine) -> None:
    a, b = gated_builds(trtopt_cli.folder)
    measured = profile(b, duration=0.1)
    (own,) = measured.engines
    layers = tuple(  # a gate that costs time for certain
        msgspec.structs.replace(one, ms=10.0) if {*one.onnx_nodes} & {*own.float_gates} else one
        for one in own.layers
    )
    saved(msgspec.structs.replace(measured, engines=(msgspec.structs.replace(own, layers=layers),)), b)
    before = sorted(b.iterdir())
    wanted = ("--try", "gates", "--try", "reformats")  # on random values, whose scales are no change
    done = trtopt_cli("explain", a, b, "--duration", "0.1", *wanted, "--json", "e.json")
    assert done.returncode == 0, done.stderr
    found = read_versioned((trtopt_cli.folder / "e.json").read_bytes(), Explanation)
    by_option = {one.option: one for one in found.engines[0].trials}
    gates = by_option["--forms gates=int8"]
    (cause,) = (one for one in found.engines[0].causes if one.cause == GATES)
    assert gates.causes == (GATES,)
    assert gates.predicted_ms == cause.cost_ms > 0
    assert gates.against_b is not None
    assert min(gates.ms or 0, gates.a_ms or 0, gates.b_ms or 0) > 0
    assert gates.gain_ms == pytest.approx((gates.b_ms or 0) - (gates.ms or 0))
    residual = by_option["--forms residual=skip"]
    assert (residual.ms, residual.reason) == (None, "it changes nothing in B's graph")
    assert sorted(b.iterdir()) == before
    with (b / "model.onnx").open("ab") as file:
        file.write(b"\0")
    assert "model.onnx" in trtopt_cli.fails(1, "explain", a, b, "--duration", "0.1", *wanted)


@pytest.mark.long
def test_what_cannot_be_tried_says_why(in_fp32: ProfileReport, cpu_build: Path, tmp_path: Path) -> None:
    slower = in_fp32.engines[1]
    layers = tuple(msgspec.structs.replace(one, ms=(one.ms or 0) / 2) for one in slower.layers)
    faster = msgspec.structs.replace(slower, layers=layers, latency_ms=0.9 * (slower.latency_ms or 0))
    a = saved(msgspec.structs.replace(in_fp32, engines=(faster,)), tmp_path / "a")
    found = explain(a, cpu_build, batch=8, duration=0.1, remedies=["products"])
    (trial,) = found.engines[0].trials
    assert (trial.ms, trial.reason) == (None, "no remedy is known")
    with pytest.raises(UsageError, match="no cause"):
        explain(a, cpu_build, batch=8, duration=0.1, remedies=["attention"])
    with pytest.raises(UsageError, match="build folder"):
        explain(a, a, remedies=["all"])
    spent = explain(a, cpu_build, batch=8, duration=0.1, remedies=["all"], budget=0.001)
    assert not any(one.ms for one in spent.engines[0].trials)


@pytest.mark.long
def test_a_rewrite_rule_is_tried_on_a_graph_in_fp32(tmp_path: Path) -> None:
    net = Net(17, x=("N", 16, 64))
    first, second, third = (net.linear(name, "x", 64, 64) for name in "qkv")
    onnx.save(
        net.model(net.node("Add", "y", net.node("Add", "sum", first, second), third)), tmp_path / "m.onnx"
    )
    b = tmp_path / "b"
    trtopt.build(tmp_path / "m.onnx", b, backend="onnxruntime", batch=1, rewrite="none")
    measured = profile(b, duration=0.1)
    (own,) = measured.engines
    products = [one for one in own.layers if {*one.onnx_nodes} & {*"qkv"}]
    whole = msgspec.structs.replace(products[0], onnx_nodes=(*"qkv",), onnx_ops=("MatMul",) * 3)
    layers = (whole, *(one for one in own.layers if one not in products))
    merged = msgspec.structs.replace(own, layers=layers)
    a = saved(msgspec.structs.replace(measured, engines=(merged,)), tmp_path / "a")
    (found,) = explain(a, saved(measured, b), duration=0.1, remedies=["only A merges"]).engines
    (trial,) = found.trials
    assert (trial.option, trial.reason, trial.a_ms) == ("--add-rule merge-matmuls", "", None)
    assert trial.gain_ms is not None
    assert trial.against_b is not None


def test_models_that_share_few_nodes_are_explained_with_a_note(
    in_fp32: ProfileReport, tmp_path: Path
) -> None:
    content = json.loads(to_json(in_fp32))
    for engine in content["engines"]:
        for layer in engine["layers"][1:]:
            layer["onnx_nodes"] = [f"other{name}" for name in layer["onnx_nodes"]]
    (tmp_path / "other.json").write_text(json.dumps(content))
    found = explain(saved(in_fp32, tmp_path / "a"), tmp_path / "other.json")
    assert any("two models" in note for note in found.notes)
    assert not any("two models" in note for note in explain(tmp_path / "a", tmp_path / "a").notes)


def test_kernels_that_the_tracer_missed_make_a_note(in_fp32: ProfileReport, tmp_path: Path) -> None:
    missed = msgspec.structs.replace(kernels(row("product", "conv", 1.0)), dropped=3)
    engines = tuple(msgspec.structs.replace(one, kernels=missed) for one in in_fp32.engines)
    b = saved(msgspec.structs.replace(in_fp32, engines=engines), tmp_path / "b")
    found = explain(saved(in_fp32, tmp_path / "a"), b)
    assert [note.partition(" kernels of ")[2][:1] for note in found.notes if "missed" in note] == ["B"]
