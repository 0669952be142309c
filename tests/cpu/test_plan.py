"""From measurements to a plan, to serving by it, on ONNX Runtime."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec import structs
from rich.console import Console

import trtopt
from tests.support.brief_plans import few_simulated  # noqa: F401  (a fixture of every test here)
from tests.support.command_line import DIGITS, CommandLine
from trtopt.api import plan as make_plan
from trtopt.cli.main import cli
from trtopt.errors import ArtifactError, PlanError
from trtopt.files.atomic import write_atomically
from trtopt.files.manifests import read_plan
from trtopt.records import BatchPlan, from_json, to_json
from trtopt.report.planning import plan_view
from trtopt.serving.batcher import DynamicBatcher
from trtopt.serving.pool import EnginePool
from trtopt.workflows.plan import plan as planning
from trtopt.workflows.plan.plan import serving_costs
from trtopt.workflows.plan.sources import read_measured

SLO = "p50=500ms"
"""What a small model keeps on any machine, however busy."""
UNMEASURED_S = 0.01
"""No serving cost is measured so soon: the plan says so, and takes it as zero."""
UNMEASURED = ("--timeout", str(UNMEASURED_S))


@contextmanager
def one_core() -> Iterator[None]:
    """For all requests: ONNX Runtime on several has threads that spin from one to the next."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build folders with their measurements: batches 1 and 8, one engine for 1 to 16, one with profiles."""
    folder = tmp_path_factory.mktemp("measured")
    trtopt.build(DIGITS, folder / "fixed", batch=(1, 8), backend="onnxruntime")
    trtopt.build(DIGITS, folder / "dynamic", batch=(1, 8, 16), dynamic=True, backend="onnxruntime")
    ranges = ((1, 1, 2), (4, 4, 8), (16,))
    trtopt.build(DIGITS, folder / "profiles", ranges=ranges, dynamic=True, backend="onnxruntime")
    for name, batch in (("fixed", None), ("dynamic", (1, 4, 16)), ("profiles", None)):
        report = trtopt.bench(folder / name, batch=batch, duration=0.1, warmup=0.01)
        write_atomically(folder / name / "bench.json", to_json(report))
    return folder


@pytest.fixture(scope="module", autouse=True)
def brief() -> Iterator[None]:
    """Plans are verified in one run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_VERIFIED_S", 2.0)
        yield


@pytest.fixture(scope="module")
def planned(measured: Path) -> Path:
    """A plan for 200 requests a second, verified; by the command, in this process, where they are few."""
    (path := measured / "plans" / "plan.json").parent.mkdir()
    folders = [str(measured / name) for name in ("fixed", "dynamic")]
    with one_core():
        done = CliRunner().invoke(
            cli,
            ["plan", *folders, "-o", str(path), "--slo", SLO, "--rate", "200", "--verify"],
            env={"COLUMNS": "200"},
            catch_exceptions=False,
        )
    assert done.exit_code == 0, done.stderr
    assert "verified: " in done.stdout
    assert "predicted" in done.stdout
    assert "measured" in done.stdout
    assert any(
        "one worker: nothing was measured with several streams" in note for note in read_plan(path).notes
    )
    return path


def test_a_plan_says_what_it_is_made_of_and_survives_its_file(planned: Path) -> None:
    plan = read_plan(planned)
    assert plan.schema == "trtopt.plan/9"
    assert (plan.goal, plan.load.rate, plan.load.arrivals) == (SLO, 200.0, "poisson")
    assert plan.prediction.goal.high <= 500
    assert plan.prediction.requests == 1000
    assert plan.buckets == {0: {"image": (1, 8, 8)}} or len(plan.buckets[0]) == 1
    assert from_json(to_json(plan), BatchPlan) == plan


def test_verifying_answers_every_request_and_tells_what_they_took(planned: Path) -> None:
    plan = read_plan(planned)
    done = plan.verification
    assert done is not None
    assert done.answered == done.requests
    assert (done.rejected, done.failed) == (0, 0)
    assert done.runs == (done.total,) == (done.typical,)
    assert 0 < done.total.p50_ms <= done.total.p99_ms


def test_several_runs_are_told_each_by_their_medians_and_together(planned: Path) -> None:
    plan = read_plan(planned)
    assert plan.verification is not None
    usual, told = plan.verification.total, plan.prediction
    inside = structs.replace(usual, p99_ms=told.p99.value, goal_ms=1.25)
    outside = structs.replace(inside, p99_ms=told.p99.high + 1, goal_ms=600.0)
    done = structs.replace(plan.verification, runs=(inside, outside, inside), total=outside)
    console = Console(file=StringIO(), width=200)
    console.print(plan_view(structs.replace(plan, verification=done)))
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "median of 3 runs" in text
    assert re.search(r"p99 ms \S+ \S+ to \S+ \S+ 2 of 3 \+0\.0%", text)
    assert "p50 of each run: 1.25, 600, 1.25 ms" in text
    assert "p50 of all was 600 ms, the goal is 500ms" in text


def test_a_pool_opens_a_plan_and_a_batcher_goes_by_its_policy(planned: Path) -> None:
    plan = read_plan(planned)
    with EnginePool.open(planned) as pool, DynamicBatcher(pool) as batcher:
        assert pool.workers == plan.workers
        assert batcher.policy == plan.policy
        ((name, shape),) = plan.buckets[0].items()
        outputs = batcher.submit({name: np.zeros(shape, np.float32)}).result(timeout=60)
        assert len(outputs) == 1


def test_an_engine_that_is_missing_from_a_plan_or_another_one_is_not_loaded(
    measured: Path, planned: Path, tmp_path: Path
) -> None:
    shutil.copytree(measured, tmp_path / "copy")
    path = tmp_path / "copy" / "plans" / "plan.json"
    engine = path.parent / read_plan(path).engines[0].artifact.path
    engine.write_bytes(engine.read_bytes() + b"\0")
    with pytest.raises(ArtifactError, match="is not the file that the plan vouches for"):
        EnginePool.open(path)
    engine.unlink()
    with pytest.raises(ArtifactError, match=r"cannot be read.*\n.*move the plan back"):
        EnginePool.open(path)


def test_a_damaged_plan_is_refused(planned: Path, tmp_path: Path) -> None:
    cut = tmp_path / "plan.json"
    cut.write_bytes(planned.read_bytes()[:-10])
    with pytest.raises(ArtifactError, match=r"plan.json: cannot be read as a plan"):
        EnginePool.open(cut)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda plan: plan["engines"].clear(), "it lists no engines"),
        (lambda plan: plan["buckets"].clear(), "no shapes that requests are padded to"),
        (lambda plan: plan["buckets"]["0"].clear(), "length 0 has no shape for input 'images'"),
        (lambda plan: plan["engines"][0]["artifact"]["plan"]["shapes"].clear(), "has no shape for input"),
        (lambda plan: plan["engines"][0]["artifact"]["plan"]["batch"].update(min=[]), "of 0 batch sizes"),
    ],
)
def test_a_plan_that_was_edited_into_nonsense_is_refused(
    planned: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], object], told: str
) -> None:
    document = json.loads(planned.read_bytes())
    edit(document)
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match=told):
        EnginePool.open(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("change", "is_missed"),
    [
        ({"goal_ms": 1.0}, False),
        ({"goal_ms": 500.1}, True),
        ({"goal_ms": 1.0, "lost": 0.49}, False),
        ({"goal_ms": 1.0, "lost": 0.51}, True),
    ],
)
def test_a_plan_that_missed_its_goal_when_it_was_served_fails(
    planned: Path, change: dict[str, float], is_missed: bool
) -> None:
    plan = read_plan(planned)
    done = plan.verification
    assert done is not None
    lost = int(change.get("lost", 0.0) * done.requests)
    typical = structs.replace(done.typical, goal_ms=change["goal_ms"])
    done = structs.replace(done, runs=(typical,), answered=done.requests - lost, rejected=lost)
    expected = pytest.raises(PlanError, match="--rate 160") if is_missed else nullcontext()
    with expected:
        planning.require_goal(structs.replace(plan, verification=done))


def test_a_sweep_is_planned_with_and_several_streams_let_several_workers_be(
    tmp_path: Path,
) -> None:
    swept, path = tmp_path / "swept", tmp_path / "plan.json"
    trtopt.sweep(
        DIGITS, swept, batch=(1, 4), streams=(1, 2), backend="onnxruntime", duration=0.1, warmup=0.01
    )
    plan = make_plan([swept], path, slo=SLO, rate=100.0, max_engines=1, timeout=UNMEASURED_S)
    assert not any("several streams" in note for note in plan.notes)
    costs = serving_costs(read_measured([swept]), None, ())
    assert sorted(costs) == [1, 2]  # measured with each number of workers
    assert len(plan.engines) == 1
    with EnginePool.open(path) as pool:
        assert pool.largest_batch in (1, 4)


@pytest.mark.long
def test_an_engine_with_profiles_is_planned_with_and_served_from_even_behind_a_link(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    path = tmp_path / "link" / "plan.json"
    path.parent.symlink_to(tmp_path / "deep" / "er", target_is_directory=True)
    plan = make_plan([measured / "profiles"], path, slo=SLO, rate=100.0, max_engines=1, verify=True)
    assert plan.verification is not None
    assert plan.verification.answered > 100
    (engine,) = plan.engines
    assert [batch for batch, _ in engine.latency_ms] == [1, 2, 4, 8, 16]
    assert len(engine.artifact.plan.multi_profile) == 3
    with EnginePool.open(path) as pool:
        (loaded,) = pool.catalogue.engines
        assert [(offer.low, offer.high) for offer in loaded.offers] == [(1, 2), (4, 8), (16, 16)]


def test_recorded_arrivals_are_planned_for_at_their_own_rate(measured: Path, tmp_path: Path) -> None:
    times = tmp_path / "arrivals.txt"
    times.write_text("\n".join(f"{index * 0.01:.3f}" for index in range(300)))
    plan = make_plan(
        [measured / "fixed"], tmp_path / "plan.json", slo=SLO, arrivals=str(times), timeout=UNMEASURED_S
    )
    assert plan.load.rate == pytest.approx(100)
    assert plan.load.file_sha256 is not None


def test_bounds_that_nothing_keeps_are_reported_with_what_each_costs(measured: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(
            [measured / "fixed"], tmp_path / "p.json", slo="p50=0.001ms", rate=50.0, timeout=UNMEASURED_S
        )
    assert caught.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []
    told = str(caught.value)
    assert "no setup keeps all bounds" in told
    assert "p50=0.001ms: the closest comes to" in told
    assert "rate 50/s: no rate keeps the other bounds" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--slo", "mean=3ms"], "--slo mean=3ms: not of the form p99=5ms"),
        (["--slo", SLO, "--rate", "0"], "--rate 0: out of range"),
        (["--slo", SLO, "--memory", "8"], "--memory 8: not a size"),
        (["--slo", SLO, "--max-engines", "9"], "--max-engines 9"),
        (["--slo", SLO, "--lengths", "128"], "not a length with its share"),
        (["--slo", SLO, "--lengths", "128:1"], "the sweep has none"),
        (["--slo", SLO, "--arrivals", "weekly"], "neither a kind of arrivals nor a file"),
    ],
)
def test_wrong_wishes_are_refused_before_the_work(
    measured: Path, trtopt_cli: CommandLine, arguments: list[str], told: str
) -> None:
    assert told in trtopt_cli.fails(2, "plan", measured / "fixed", "-o", "plan.json", *arguments)


def test_a_folder_without_measurements_is_refused(cpu_build: Path, trtopt_cli: CommandLine) -> None:
    told = trtopt_cli.fails(2, "plan", cpu_build, "-o", "plan.json", "--slo", SLO)
    assert "holds no bench.json, a result of trtopt bench" in told
    assert f"trtopt bench {cpu_build} --json {cpu_build}/bench.json" in told
    told = trtopt_cli.fails(2, "plan", DIGITS, "-o", "plan.json", "--slo", SLO)
    assert "digits.onnx: is not a folder\n  → give a folder of `trtopt sweep`" in told
