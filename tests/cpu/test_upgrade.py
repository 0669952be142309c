"""`trtopt compare --upgrade` on ONNX Runtime: planted wrong results are found, and none is where none was."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import pytest

import trtopt
from tests.support.long import few
from tests.support.paths import ROOT
from trtopt.cli.outputs import end_gate
from trtopt.errors import UsageError
from trtopt.files.manifests import MANIFEST, read_manifest
from trtopt.records import to_json
from trtopt.requests.measure import CompareRequest
from trtopt.workflows import race
from trtopt.workflows.compare.upgrade import built_graphs

FOLDER = ROOT / "benchmarks" / "upgrade"
Changes = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "ROUNDS", 8)
    monkeypatch.setattr(race, "WARMUP_S", 0.02)
    monkeypatch.syspath_prepend(FOLDER)


def cases() -> Any:
    """The benchmark's models and faults."""
    import cases

    return cases


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> Changes:
    """What is said of results from one level of optimisation to another; engines are built once."""
    folder = tmp_path_factory.mktemp("upgrade")

    def run(name: str, precision: str, levels: tuple[str, str], fault: str = "") -> list[Any]:
        from measure import Bench

        bench = Bench(folder)
        old, new = bench.build(name, precision, levels[0]), bench.build(name, precision, levels[1], fault)
        return bench.changes(old, new)

    return run


LEVELS = ("disable", "all")
FAULTS = (
    "one wrong channel", "padding lost at one edge", "clipped range", "skip left out", "rounded to FP16",
    "stale constant", "strided concat", "swapped axis", "zeroed GEMM rows", "one bad sample of a batch",
    "wrong last element", "small values lost", "last index of a table", "softmax along another axis",
    "NaN in attention", "another epsilon", "approximate activation", "sum without the last element",
    "one channel's scale", "scores lost", "two classes swapped", "a label off by one",
)  # fmt: skip
MODELS = (
    "residual", "strided_concat", "products", "attention", "normalised", "reductions", "quantised",
    "detector", "labelled", "digits", "digits_transformer",
)  # fmt: skip


@pytest.mark.parametrize(
    "fault", few("rounded to FP16", "wrong last element", "a label off by one", of=FAULTS)
)
def test_a_planted_wrong_result_is_found(fault: str, changes: Changes) -> None:
    name, _ = next(one for one in cases().planted() if one[1] == fault)
    found = changes(name, "fp32", LEVELS, fault)
    assert sum(one.wrong for one in found) > 0


@pytest.mark.parametrize(
    ("name", "precision", "levels"),
    few(
        ("quantised", "fp16", LEVELS),
        ("residual", "fp32", LEVELS),
        of=(
            *itertools.product(MODELS, ("fp32", "fp16"), (LEVELS, LEVELS[::-1])),
            *itertools.product(MODELS, ("fp16",), (("all", "rounded"), ("rounded", "all"))),
        ),
    ),
)
def test_a_clean_upgrade_raises_no_alarm(
    name: str, precision: str, levels: tuple[str, str], changes: Changes
) -> None:
    found = changes(name, precision, levels)
    assert [(one.wrong, one.undecided) for one in found] == [(0, 0)] * len(found)


@pytest.mark.parametrize("new", few("bad", of=("bad", "good")))
def test_wrong_results_fail_the_gate_and_right_ones_leave_it_to_speed(new: str, tmp_path: Path) -> None:
    right, wrong = (
        cases().write("products", tmp_path / f"{place}.onnx", fault)
        for place, fault in (("right", ""), ("wrong", "zeroed GEMM rows"))
    )
    for model, name, level in ((right, "old", "disable"), (right, "good", "all"), (wrong, "other", "all")):
        trtopt.build(model, tmp_path / name, batch=4, backend="onnxruntime", graph_optimization=level)
    cases().plant(tmp_path / "good", tmp_path / "other", tmp_path / "bad")
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).standard_normal((6, 64), np.float32))
    data = tmp_path / "data.npz"
    compared = trtopt.compare(tmp_path / "old", tmp_path / new, upgrade=True, data=data, duration=0.1)
    found = compared.report.upgrade
    assert found is not None
    codes = {"PASSED": 0, "SLOWER": 3, "WRONG": 3, "UNDECIDED": 5}
    with pytest.raises(click.exceptions.Exit) as ended:
        end_gate((), compared.view.gate)
    verdict = compared.report.upgrade_verdict
    assert verdict is not None
    assert ended.value.exit_code == codes[verdict]
    assert (verdict == "WRONG") == (new == "bad")
    assert f"({verdict})" in compared.table()
    ((result,), (layers,)) = found.outputs, found.layers
    assert bool(result.wrong) == (new == "bad") == ("data, batch 2" in result.inputs)
    assert any(len(one.a) > len(one.b) for one in layers.replaced)
    assert found.engines[0].a.build_seconds > 0


def test_each_engine_is_judged_by_its_own_graph(tmp_path: Path) -> None:
    model = cases().write("products", tmp_path / "model.onnx")
    folder, half = tmp_path / "one", tmp_path / "half"
    for place, batch, precision in ((folder, 1, None), (half, 4, "fp16")):
        trtopt.build(model, place, batch=batch, backend="onnxruntime", precision=precision)
    ours, theirs = map(read_manifest, (folder, half))
    graph = msgspec.structs.replace(theirs.onnx, path="half.onnx")
    shutil.copy(half / Path(theirs.onnx.path).name, folder / graph.path)
    both = msgspec.structs.replace(ours, engines=(*ours.engines, *theirs.engines), graphs=(graph,))
    (folder / MANIFEST).write_bytes(to_json(both))
    found = built_graphs(folder, CompareRequest(folder, folder))
    assert [found[one.plan.onnx_sha256].types for one in both.engines] == [ours.onnx.types, theirs.onnx.types]


def test_engines_that_do_not_run_here_are_not_judged_by_others_in_their_place(cpu_build: Path) -> None:
    with pytest.raises(UsageError, match="upgrade") as refused:
        trtopt.compare(cpu_build, cpu_build, upgrade=True, backend="tensorrt-rtx")
    assert "onnxruntime" in str(refused.value.remedy)


def test_without_a_second_folder_or_a_model_there_is_no_upgrade(cpu_build: Path) -> None:
    with pytest.raises(UsageError, match="upgrade"):
        trtopt.compare(cpu_build, upgrade=True, control=2)
    with pytest.raises(UsageError, match="upgrade"):
        trtopt.compare(cpu_build, cpu_build, upgrade=True, builds=2)
