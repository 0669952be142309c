"""`trtopt compare` on result files that were really measured, and on changed copies of them."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

import trtopt
from tests.support.command_line import CommandLine
from trtopt.cli.main import cli
from trtopt.errors import OutputError
from trtopt.records import to_json


@pytest.fixture(scope="module")
def result(cpu_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result file for batches 1 and 8, with latencies of a quiet machine: this one may be busy."""
    path = tmp_path_factory.mktemp("results") / "measured.json"
    path.write_bytes(to_json(trtopt.bench(cpu_build, duration=0.03, warmup=0.01), indent=None))
    return changed(path, path.parent, _quiet)


def _quiet(report: dict[str, Any]) -> None:
    random, count = np.random.RandomState(0), 400  # however few a busy machine has taken
    for point in report["points"]:
        samples = point["latency"]["samples"]
        for name, column in samples.items():
            samples[name] = (column * count)[:count]
        starts, latencies = 0.2 * np.arange(count), 0.1 * np.exp(0.01 * random.standard_normal(count))
        samples |= {"start_ms": starts.tolist(), "end_ms": (starts + latencies).tolist()}


def changed(result: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a result file, changed."""
    report = json.loads(result.read_text())
    change(report)
    path = folder / "b.json"
    path.write_text(json.dumps(report))
    return path


def slowed(factor: float) -> Callable[[dict[str, Any]], None]:
    """Every query takes `factor` times as long."""

    def change(report: dict[str, Any]) -> None:
        for point in report["points"]:
            samples = point["latency"]["samples"]
            samples["end_ms"] = [
                start + factor * (end - start)
                for start, end in zip(samples["start_ms"], samples["end_ms"], strict=True)
            ]

    return change


def test_a_file_against_itself_has_no_winner(result: Path, trtopt_cli: CommandLine) -> None:
    done = trtopt_cli("compare", result, result)
    assert done.returncode == 0, done.stderr
    assert "+0.0%" in done.stdout
    assert "FASTER" not in done.stdout
    assert "SLOWER" not in done.stdout


@pytest.mark.parametrize(("factor", "verdict", "status"), [(1.5, "SLOWER", 3), (0.5, "FASTER", 0)])
def test_a_true_change_earns_its_verdict_at_every_batch_and_a_regression_exits_with_3(
    result: Path, trtopt_cli: CommandLine, factor: float, verdict: str, status: int
) -> None:
    other = changed(result, trtopt_cli.folder, slowed(factor))
    done = trtopt_cli("compare", result, other, "--markdown")
    assert done.returncode == status, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(("| 1 |", "| 8 |"))]
    assert [row.rstrip(" |").rpartition(" ")[2] for row in rows] == [verdict, verdict]


@pytest.mark.parametrize("flags", [(), ("--control", "2")])
def test_a_result_file_alone_needs_another_or_its_engines(
    result: Path, trtopt_cli: CommandLine, flags: tuple[str, ...]
) -> None:
    told = trtopt_cli.fails(2, "compare", result, *flags)
    assert "give a second result file; or the build folder with --control K" in told


@pytest.mark.parametrize("swapped", [False, True])
def test_a_batch_that_one_side_lacks_is_an_error_until_the_others_are_named(
    swapped: bool, result: Path, trtopt_cli: CommandLine
) -> None:
    other = changed(result, trtopt_cli.folder, lambda report: report["points"].pop())
    files = (other, result) if swapped else (result, other)
    assert "--batch 1" in trtopt_cli.fails(1, "compare", *files)
    assert trtopt_cli("compare", *files, "--batch", "1").returncode == 0
    trtopt_cli.fails(1, "compare", *files, "--batch", "1,8")


def _noisy(report: dict[str, Any]) -> None:
    random = np.random.RandomState(1)
    for point in report["points"]:
        samples = point["latency"]["samples"]
        latencies = 0.1 * np.exp(0.1 * random.standard_normal(len(samples["start_ms"])))
        samples["end_ms"] = (np.array(samples["start_ms"]) + latencies).tolist()


def test_what_is_not_shown_to_be_within_the_limit_exits_with_5_and_the_limit_can_be_set(
    result: Path, trtopt_cli: CommandLine
) -> None:
    other = changed(result, trtopt_cli.folder, _noisy)
    done = trtopt_cli("compare", result, other)
    assert done.returncode == 5
    assert "trtopt compare A_FOLDER B_FOLDER" in done.stdout
    assert trtopt_cli("compare", result, other, "--fail-on", "90%").returncode == 0
    assert trtopt_cli("compare", result, result, "--fail-on", "0.01").returncode == 5
    for wrong in ("5", "0", "nan", "five", "120%"):
        trtopt_cli.fails(2, "compare", result, result, "--fail-on", wrong)


def test_a_regression_beyond_all_disturbance_exits_with_3(result: Path, trtopt_cli: CommandLine) -> None:
    noisy = changed(result, trtopt_cli.folder, _noisy)
    slower = trtopt_cli.folder / "slower.json"
    noisy.rename(slower)
    other = changed(slower, trtopt_cli.folder, slowed(3.0))
    assert trtopt_cli("compare", slower, other).returncode == 3


@pytest.mark.parametrize(
    ("other_environment", "words"),
    [({"cpu": "Another CPU"}, "Another CPU"), ({"cpus": list(range(300))}, "against 300")],
)
def test_unlike_machines_are_compared_only_when_forced(
    other_environment: dict[str, Any], words: str, result: Path, trtopt_cli: CommandLine
) -> None:
    other = changed(result, trtopt_cli.folder, lambda report: report["environment"].update(other_environment))
    told = trtopt_cli.fails(2, "compare", result, other)
    assert words in told
    assert "--force" in told
    assert trtopt_cli("compare", result, other, "--force").returncode == 0


def _longer(report: dict[str, Any]) -> None:
    for point in report["points"]:
        point["latency"]["shapes"]["images"][1] = 96


def _of_another_model(report: dict[str, Any]) -> None:
    report["source_sha256"] = "e" * 64


def _with_another_input(report: dict[str, Any]) -> None:
    report["points"][1]["latency"]["shapes"]["mask"] = [8, 32]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_longer, "batch 1: input 'images', 1×1×8×8 and 1×96×8×8"),
        (_of_another_model, "the models, "),
        (_with_another_input, "batch 8: input 'mask', not there and 8×32"),
    ],
)
def test_files_of_unlike_work_are_compared_only_when_forced_and_report_it(
    result: Path, trtopt_cli: CommandLine, change: Callable[[dict[str, Any]], None], told: str
) -> None:
    other = changed(result, trtopt_cli.folder, change)
    refused = trtopt_cli.fails(2, "compare", result, other)
    assert f"A and B differ in {told}" in refused
    assert "--force" in refused
    done = trtopt_cli("compare", result, other, "--force")
    assert done.returncode == 0, done.stderr
    assert f"note: A and B differ in {told}" in done.stdout


def test_what_a_build_makes_of_one_model_may_differ(result: Path, trtopt_cli: CommandLine) -> None:
    other = changed(result, trtopt_cli.folder, lambda report: report.update({"model_sha256": "e" * 64}))
    done = trtopt_cli("compare", result, other)
    assert done.returncode == 0, done.stderr
    assert "A and B differ" not in done.stdout


def test_where_the_models_are_unknown_and_the_graphs_differ_that_is_reported(
    result: Path, trtopt_cli: CommandLine
) -> None:
    def unnamed(report: dict[str, Any]) -> None:
        report.update({"source_sha256": "", "model_sha256": "e" * 64})

    other = changed(result, trtopt_cli.folder, unnamed)
    assert "not both files name the model" in trtopt_cli("compare", result, other).stdout


def _drop_samples(report: dict[str, Any]) -> None:
    report["points"][0]["latency"]["samples"]["end_ms"].pop()


def _cut_groups(report: dict[str, Any]) -> None:
    report["points"][0]["throughput"]["samples"]["group"] = [0, 0]


def _end_before_start(report: dict[str, Any]) -> None:
    report["points"][0]["latency"]["samples"]["end_ms"][3] = -1.0


def _other_contract(report: dict[str, Any]) -> None:
    report["points"][0]["latency"]["contract"]["transfers"] = True


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (_drop_samples, 1, "of unlike length"),
        (_cut_groups, 1, "of unlike length"),
        (_end_before_start, 1, "batch 1: some of its queries end before they begin"),
        (_other_contract, 2, "different contracts"),
        (lambda report: report["points"].clear(), 1, "holds no measurements"),
        (lambda report: report.update({"schema": "trtopt.bench/9"}), 1, "of schema trtopt.bench/9"),
        (lambda report: report.pop("environment"), 1, "environment"),
        (lambda report: report["points"][0].update({"batch": 2}), 1, "are of batch 1"),
        (lambda report: report["points"].insert(0, report["points"][1]), 1, "batch 8 more than once"),
    ],
)
def test_files_that_do_not_belong_together_or_are_damaged_are_refused(
    result: Path, trtopt_cli: CommandLine, change: Callable[[dict[str, Any]], None], status: int, message: str
) -> None:
    other = changed(result, trtopt_cli.folder, change)
    assert message in trtopt_cli.fails(status, "compare", result, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--across-contracts", "trtexec-10,trtexec-11"], "holds no engine to measure under other contracts"),
        (["--builds", "2"], "a result file cannot be built"),
    ],
)
def test_a_result_file_is_no_engine_and_no_model(
    result: Path, trtopt_cli: CommandLine, arguments: list[str], message: str
) -> None:
    assert message in trtopt_cli.fails(2, "compare", result, *arguments)


def test_a_truncated_or_foreign_file_is_refused(result: Path, trtopt_cli: CommandLine) -> None:
    cut = trtopt_cli.folder / "cut.json"
    cut.write_bytes(result.read_bytes()[:1000])
    assert "cannot be read as a result file" in trtopt_cli.fails(1, "compare", result, cut)
    theirs = trtopt_cli.folder / "times.json"
    theirs.write_text('[{"h2dMs": 0.0, "computeMs": 9.0, "d2hMs": 0.0, "latencyMs": 9.0}]')
    assert "trtopt bench --json" in trtopt_cli.fails(1, "compare", result, theirs)
    assert "does not exist" in trtopt_cli.fails(2, "compare", result, "nowhere.json")
    assert "--threshold" in trtopt_cli.fails(2, "compare", result, result, "--threshold", "2")


def exports(*names: str) -> list[str]:
    return [word for name in names for word in ("--export", f"{name}={name}")]


def cases_in(folder: Path) -> list[str]:
    """What the cases of a JUnit file came to."""
    return [case[0].tag for case in ElementTree.parse(folder / "junit").iter("testcase")]


@pytest.mark.parametrize(
    ("change", "flags", "status", "case", "figures"),
    [
        (slowed(1.5), (), 3, "failure", 2),
        (slowed(1.0), ("--fail-on", "0.01"), 5, "error", 2),
        (_noisy, (), 5, "error", 0),
        (_noisy, ("--fail-on", "90%"), 0, "system-out", 2),
    ],
)
def test_what_a_ci_is_given_says_the_same_as_the_exit_code(
    change: Callable[[dict[str, Any]], Any],
    flags: tuple[str, ...],
    status: int,
    case: str,
    figures: int,
    result: Path,
    trtopt_cli: CommandLine,
) -> None:
    """Figures that are not to be trusted are in no dashboard."""
    other = changed(result, trtopt_cli.folder, change)
    done = trtopt_cli("compare", result, other, *flags, *exports("junit", "badge", "bencher"))
    assert done.returncode == status
    assert cases_in(trtopt_cli.folder) == [case] * 2
    assert json.loads((trtopt_cli.folder / "badge").read_text())["isError"] == (status != 0)
    assert len(json.loads((trtopt_cli.folder / "bencher").read_text())) == figures


def test_a_comparison_that_fails_replaces_what_an_earlier_one_passed(
    result: Path, trtopt_cli: CommandLine
) -> None:
    written = exports("junit", "badge", "bencher", "github-action-benchmark")
    assert trtopt_cli("compare", result, result, *written).returncode == 0
    assert cases_in(trtopt_cli.folder) == ["system-out"] * 2
    other = changed(result, trtopt_cli.folder, lambda report: report.pop("points"))
    assert trtopt_cli("compare", result, other, *written).returncode == 1
    assert cases_in(trtopt_cli.folder) == ["error"]
    assert json.loads((trtopt_cli.folder / "badge").read_text())["color"] == "red"
    assert json.loads((trtopt_cli.folder / "bencher").read_text()) == {}
    assert json.loads((trtopt_cli.folder / "github-action-benchmark").read_text()) == []


def test_what_cannot_be_exported_leaves_no_other_file_to_pass(
    result: Path, trtopt_cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JUnit's file would be larger than files may be."""
    monkeypatch.chdir(trtopt_cli.folder)
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # or else imports leave damaged files
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, most))
    try:
        done = CliRunner().invoke(cli, ["compare", str(result), str(result), *exports("badge", "junit")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert isinstance(done.exception, OutputError)
    assert json.loads(Path("badge").read_text())["message"] == "1 failed"
    assert not Path("junit").exists()


def test_no_file_that_is_not_an_export_is_written_over(result: Path, trtopt_cli: CommandLine) -> None:
    users = trtopt_cli.folder / "users"
    users.write_text("of an earlier step\n")
    for name in ("junit", "badge", "bencher", "github-action-benchmark"):
        trtopt_cli.fails(1, "compare", result, result, "--export", f"{name}={users}")
    trtopt_cli.fails(2, "compare", result, result, "--export", f"junit={result}")
    trtopt_cli.fails(2, "compare", result, result, "--export", "junit=")
    trtopt_cli.fails(2, "compare", result, result, "--export", "xml=out.xml")


def test_without_b_there_is_no_verdict_to_export(cpu_build: Path, trtopt_cli: CommandLine) -> None:
    trtopt_cli.fails(2, "compare", cpu_build, "--control", "1", *exports("junit"))
