"""Who may take turns; what a control shows of separate runs, which is kept per device."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.support import examples
from tests.support.interleaved_runs import block
from trtopt.errors import UsageError
from trtopt.measure.contracts import contract_named
from trtopt.measure.engine import LoadedEngine
from trtopt.records import BenchReport, to_json
from trtopt.requests.measure import CompareRequest
from trtopt.workflows.compare.result_files import compare_files
from trtopt.workflows.listener import SILENT
from trtopt.workflows.race import Setting, heat, keep_run_spread, measured_run_spread, race

OTHER = msgspec.structs.replace(examples.GPU, uuid="GPU-2")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRTOPT_CACHE_DIR", str(tmp_path / "store"))
    return tmp_path / "store"


def test_a_device_has_its_own_and_another_none() -> None:
    text = keep_run_spread(examples.GPU, 0.02, 10)
    assert text == (
        "10 runs of A on A GPU differ by 2.00% (standard deviation); kept for comparisons of result files "
        "and for tuning"
    )
    kept = measured_run_spread(examples.GPU)
    assert kept is not None
    assert (kept.deviation, kept.runs) == (0.02, 10)
    assert measured_run_spread(OTHER) is None


def test_a_damaged_file_is_none(store: Path) -> None:
    keep_run_spread(examples.GPU, 0.02, 10)
    (file,) = (store / "run-spread").iterdir()
    file.write_bytes(file.read_bytes()[:30])
    assert measured_run_spread(examples.GPU) is None


def test_one_run_has_no_spread() -> None:
    keep_run_spread(examples.GPU, 0.0, 1)
    assert measured_run_spread(examples.GPU) is None


def test_engines_of_two_backends_take_no_turns() -> None:
    ours = LoadedEngine(path="", artifact=examples.engine(), batch=8, shapes={})
    backend = msgspec.structs.replace(ours.artifact.plan.backend, version="0.1")
    plan = msgspec.structs.replace(ours.artifact.plan, backend=backend)
    theirs = msgspec.structs.replace(ours, artifact=msgspec.structs.replace(ours.artifact, plan=plan))
    setting = Setting(contract_named("isolated"), duration=1.0, data=None)
    mixed = heat("batch8", [ours, theirs], ["a", "b"], "comparison", setting)
    with pytest.raises(UsageError, match=r"tensorrt 0\.1 .*cannot be interleaved in one process"):
        race([mixed], SILENT)


def test_a_store_that_cannot_be_written_to_is_reported(store: Path) -> None:
    store.write_text("no folder")
    assert "not kept for comparisons of result files" in keep_run_spread(examples.GPU, 0.02, 10)


def test_result_files_are_compared_with_their_devices_spread(tmp_path: Path) -> None:
    def written(name: str, ms: float) -> tuple[Path, BenchReport]:
        taken = msgspec.structs.replace(
            examples.measurement(), samples=block([ms] * 100), untrustworthy=(), failure=None
        )
        point = msgspec.structs.replace(examples.report().points[0], latency=taken, throughput=None)
        report = msgspec.structs.replace(examples.report(), points=(point,))
        (tmp_path / name).write_bytes(to_json(report))
        return tmp_path / name, report

    (a, report), (b, _) = written("a.json", 1.0), written("b.json", 0.95)

    def verdict() -> str:
        outcome = compare_files(a, b, CompareRequest(a, b))
        return outcome.rows[0].comparison.verdict.value  # type: ignore[union-attr]

    assert verdict() == "FASTER"
    keep_run_spread(report.environment.device, 0.05, 10)
    assert verdict() == "UNDECIDED"
