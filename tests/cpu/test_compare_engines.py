"""`trtopt compare` on engines, recipes and contracts, measured here on ONNX Runtime, and on trtexec's files.

A shared test machine is noisy: what is asserted of verdicts is that they follow from the raw samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

import trtopt
from tests.support.command_line import DIGITS, CommandLine, needs_no_gpu
from tests.support.paths import DATA
from trtopt.cli.main import cli
from trtopt.errors import ArtifactError, DeviceError, NoGpuError, TrtoptError, UsageError
from trtopt.executors.api import Executor, run_jobs_of
from trtopt.measure.analysis.outcomes import Comparisons
from trtopt.measure.loop.interleaved import latency_blocks, valid_rounds
from trtopt.measure.statistics.comparison import MIN_LOADS, Verdict, compare as evaluator
from trtopt.records import CompareReport, Job, read_versioned
from trtopt.report.comparison import comparison_view
from trtopt.workflows import race
from trtopt.workflows.compare import engines as compare_engines


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for a verdict, and no more."""
    for module, name, value in (
        (race, "ROUNDS", 8),
        (race, "WARMUP_S", 0.02),
        (compare_engines, "RUNS", 2),
        (compare_engines, "_ROUNDS", 2),
    ):
        monkeypatch.setattr(module, name, value)


def table(markdown: str) -> list[list[str]]:
    """The cells of a Markdown table's rows."""
    rows = [line.strip()[1:-1].split("|") for line in markdown.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def test_two_folders_are_measured_in_turns_and_the_file_holds_the_samples(
    cpu_build: Path, trtopt_cli: CommandLine
) -> None:
    options = ("--duration", "0.1", "--batch", "8", "--json", "c.json", "--markdown")
    done = trtopt_cli("compare", cpu_build, cpu_build, *options)
    assert done.returncode in (0, 3, 5), done.stderr
    report = read_versioned((trtopt_cli.folder / "c.json").read_bytes(), CompareReport)
    (run,), (verdict,), (row,) = report.runs, report.verdicts, table(done.stdout)
    assert (run.batch, run.purpose, run.environment.device.kind) == (8, "comparison", "cpu")
    a, b = run.turns
    assert [len(turns.blocks) for turns in run.turns] == [20, 20]
    rounds = valid_rounds(run)
    loads = rounds.loads
    assert len(set(loads)) == len(run.loadings) >= MIN_LOADS
    assert f"loaded {len(run.loadings)} times" in done.stdout
    again = evaluator(latency_blocks(a), latency_blocks(b), loads=loads, is_reversed=rounds.is_reversed())
    assert verdict.verdict == again.verdict.value == row[-1]
    assert again.ratio is not None
    assert verdict.ratio == again.ratio.value
    assert (done.returncode == 3) == (verdict.verdict == "SLOWER")
    assert "onnxruntime" in done.stdout
    assert "contract trtexec-11+no-graph" in done.stdout
    assert "clocks are unknown: a processor's clocks are not read" in done.stdout


def test_a_device_that_falls_away_leaves_the_file_no_verdict_and_exit_code_1(
    cpu_build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two batch sizes is measured; its device is said to have failed then."""

    def failing(executor: Executor, jobs: Sequence[Job[Any]], **options: Any) -> Iterator[tuple[int, Any]]:
        for index, result in run_jobs_of(executor, jobs, **options):
            yield index, msgspec.structs.replace(result, failure="the GPU fell off the bus")

    monkeypatch.setattr(race, "run_jobs_of", failing)
    file, junit = tmp_path / "c.json", tmp_path / "junit.xml"
    options = ["--duration", "0.05", "--json", str(file), "--markdown", "--export", f"junit={junit}"]
    done = CliRunner().invoke(cli, ["compare", str(cpu_build), str(cpu_build), *options])
    assert isinstance(done.exception, DeviceError)
    assert done.exception.exit_code == 1
    assert done.exception.problem == "batch 1: the GPU fell off the bus"
    report = read_versioned(file.read_bytes(), CompareReport)
    (run,), (verdict,) = report.runs, report.verdicts
    assert run.failure == "the GPU fell off the bus"
    assert [len(turns.blocks) for turns in run.turns] == [8, 8]
    assert verdict.verdict == "UNDECIDED"
    assert "the device failed in the middle: the GPU fell off the bus" in verdict.reasons
    assert [row[-1] for row in table(done.stdout)] == ["UNDECIDED"]
    (case,) = ElementTree.parse(junit).iter("testcase")
    assert (case[0].tag, case[0].get("message")) == ("error", "batch 1: the GPU fell off the bus")


def test_a_batch_size_that_one_side_lacks_is_an_error_until_the_others_are_named(cpu_build: Path) -> None:
    with pytest.raises(ArtifactError) as caught:
        trtopt.compare(cpu_build / "batch8.onnx", cpu_build, duration=0.05)
    assert caught.value.exit_code == 1
    assert "batch=8" in caught.value.remedy
    outcome = trtopt.compare(cpu_build / "batch8.onnx", cpu_build, batch=8, duration=0.05).outcome
    assert isinstance(outcome, Comparisons)
    assert [row.batch for row in outcome.rows] == [8]
    with pytest.raises(ArtifactError):
        trtopt.compare(cpu_build / "batch8.onnx", cpu_build / "batch1.onnx", duration=0.05)


def test_a_control_is_shown_and_allowed_for_in_the_verdict(cpu_build: Path) -> None:
    compared = trtopt.compare(cpu_build, cpu_build, batch=[8], control=2, duration=0.05)
    assert [run.purpose for run in compared.report.runs] == ["comparison", "control", "control"]
    outcome = compared.outcome
    assert isinstance(outcome, Comparisons)
    (control,) = outcome.controls
    assert sum(control.control.count(verdict) for verdict in Verdict) == 2
    assert control.control.noise is not None
    reasons = {reason.code.value for reason in outcome.rows[0].comparison.reasons}
    assert reasons & {"control-noise", "control-found-winner"}


def test_a_control_needs_no_other_side_and_is_no_regression(cpu_build: Path) -> None:
    compared = trtopt.compare(cpu_build, batch=[8], control=1, duration=0.05)
    assert compared.report.verdicts == ()
    assert len(table(comparison_view(compared.outcome).markdown())) == 1


def test_recipes_are_compared_over_several_builds_with_both_spreads(cpu_build: Path) -> None:
    compared = trtopt.compare(cpu_build, cpu_build, builds=2, batch=[8], duration=0.05)
    report, outcome = compared.report, compared.outcome
    assert isinstance(outcome, Comparisons)
    names = [sorted(turns.name for turns in run.turns) for run in report.runs]
    assert names == [["A1", "A2", "B1", "B2"]] * 2
    assert len(report.built) == 4
    assert {engine.timing_cache_in for engine in report.built} == {None}
    (row,) = outcome.rows
    spreads = [remark.partition(":")[0] for remark in row.remarks]
    assert spreads == ["A, 2 builds, 4 runs", "B, 2 builds, 4 runs"]
    assert "without a timing cache" in outcome.notes[0]


def test_the_ledger_of_two_contracts_adds_up(cpu_build: Path) -> None:
    outcome = trtopt.compare(
        cpu_build, across_contracts="trtexec-10,trtexec-11", batch=[8], duration=0.03
    ).outcome
    markdown = comparison_view(outcome).markdown()
    rows = {row[0]: row[1:] for row in table(markdown)}
    assert list(rows) == ["from", "graph", "transfers", "sync", "unexplained", "to"]
    assert rows["graph"][0] == "no part in it"  # ONNX Runtime on the CPU has no CUDA graphs
    for change, explained in ((0, 1), (2, 3)):
        shares = [float(row[explained]) for name, row in rows.items() if _is_share(row[explained], name)]
        difference = float(rows["to"][explained])
        assert math.isclose(sum(shares), difference, abs_tol=0.35)  # printed to a tenth of a microsecond
        ends = float(rows["to"][change]) - float(rows["from"][change])
        assert math.isclose(ends, difference, abs_tol=0.2)


def _is_share(cell: str, name: str) -> bool:
    return name not in ("from", "to") and cell not in ("", "within noise")


def linear(folder: Path, name: str, weight: float, *outputs: str, length: int = 8) -> Path:
    """A build of y = weight · x and z = relu(y), of which those are outputs."""
    ends = [
        helper.make_tensor_value_info(one, onnx.TensorProto.FLOAT, ["N", length]) for one in ("x", *outputs)
    ]
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    held = [numpy_helper.from_array(np.float32(weight), "w")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / f"{name}.onnx")
    trtopt.build(folder / f"{name}.onnx", folder / name, backend="onnxruntime", batch=[2])
    return folder / name


@pytest.mark.long
def test_folders_of_unlike_work_are_compared_only_when_forced_and_report_it(
    tmp_path: Path, trtopt_cli: CommandLine
) -> None:
    plain = linear(tmp_path, "plain", 1.0, "z")
    other, more = linear(tmp_path, "other", 2.0, "z"), linear(tmp_path, "more", 1.0, "y", "z")
    longer = linear(tmp_path, "longer", 1.0, "z", length=16)
    asked = ("--duration", "0.1")
    assert "A and B differ in the models, " in trtopt_cli.fails(2, "compare", plain, other, *asked)
    assert "batch 2: the outputs, z and y, z" in trtopt_cli.fails(2, "compare", plain, more, *asked)
    assert "batch 2: input 'x', 2×8 and 2×16" in trtopt_cli.fails(2, "compare", plain, longer, *asked)
    done = trtopt_cli("compare", plain, other, *asked, "--force", "-v")
    assert done.returncode in (0, 3, 5), done.stderr  # 3, 5: one was slower just now, or that is open
    assert "note: A and B differ in the models, " in done.stdout
    told = trtopt_cli.fails(2, "compare", plain, longer, "--builds", "2", "--batch", "2", *asked)
    assert "batch 2: input 'x', 2×8 and 2×16" in told
    assert "the models" not in told


@needs_no_gpu
def test_no_verdict_is_given_on_others_in_place_of_engines_that_cannot_run_here(rtx_build: Path) -> None:
    with pytest.raises(NoGpuError) as caught:
        trtopt.compare(rtx_build, rtx_build, batch=[1], backend="tensorrt-rtx")
    assert "backend=" in caught.value.remedy
    unnamed: list[dict[str, Any]] = [{}, {"backend": "auto"}, {"builds": 2}]
    for more in unnamed:
        with pytest.raises(UsageError) as refused:
            trtopt.compare(rtx_build, rtx_build, batch=[1], **more)
        assert "onnxruntime" in refused.value.remedy
    assert trtopt.compare(rtx_build, rtx_build, batch=[1], duration=0.05, backend="onnxruntime").rows()
    outcome = trtopt.compare(rtx_build, control=1, batch=[1], duration=0.05).outcome
    assert any("not run" in note and "no GPU found" in note for note in outcome.notes)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["{build}"], 2, "nothing to compare it with"),
        (["{build}", "{build}", "--duration", "0"], 2, "out of range"),
        (["{build}", "{build}", "--control", "0"], 2, "--control 0"),
        (["{build}", "{build}", "--contract", "mine"], 2, "no such contract"),
        (["{build}", "{build}", "--batch", "3"], 2, "no engine here takes it"),
        (["{build}", "{build}", "--builds", "2", "--control", "3"], 2, "--control: has no effect"),
        (["{build}", "{build}", "--no-graph", "--across-contracts", "a,b"], 2, "contracts of one engine"),
        (["{build}", "{build}", "--executor", "ray"], 2, "--executor: has no effect"),
        (["{build}", "{result}"], 2, "a result file and an engine"),
        (["{result}", "{result}", "--control", "3"], 2, "--control: has no effect"),
        (["{result}", "{result}", "--batch", "7"], 1, "batch 7"),
        (["{result}", "{result}", "--across-contracts", "isolated,serving"], 2, "holds no engine"),
        (["{build}", "--across-contracts", "isolated"], 2, "not two contracts"),
        (
            ["{build}", "--across-contracts", "isolated,serving", "--threshold", "0.1"],
            2,
            "--threshold: has no",
        ),
        (["{build}", "--across-contracts", "isolated,isolated"], 2, "not two contracts"),
        (["{build}", "--across-contracts", "isolated,mine"], 2, "no such contract"),
        (["{build}", "{build}", "--across-contracts", "isolated,serving"], 2, "contracts of one engine"),
        ([str(DIGITS), str(DIGITS)], 2, "--builds 4"),
        (["{build}", "{build}", "--builds", "1"], 2, "--builds 1"),
        (["{build}", "{result}", "--across-contracts", "isolated,serving"], 2, "bench.json: a result file"),
        (["{build}", "--builds", "2"], 2, "there is no B"),
        ([str(DIGITS), "--builds", "2"], 2, "build it first: trtopt build"),
        (["{build}/batch8.onnx", "{build}", "--builds", "2"], 2, "the build folder that it lies in"),
        ([str(DIGITS), str(DIGITS), "--builds", "2"], 2, "build it first: trtopt build"),
        (["{build}", "{build}", "--json", "/proc/nowhere/c.json"], 1, "there is no folder"),
    ],
)
def test_bad_input_to_compare_gets_a_message_and_a_status(
    cpu_build: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = DATA / "results" / "bench.json"
    names: dict[str, Any] = {"build": cpu_build, "result": result}
    given = [argument.format(**names) for argument in arguments]
    with pytest.raises(TrtoptError) as caught:
        cli.main(["compare", *given], standalone_mode=False)
    assert caught.value.exit_code == status
    assert message in str(caught.value)
    assert [*tmp_path.iterdir()] == []
