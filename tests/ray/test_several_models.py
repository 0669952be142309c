"""Several models, swept on the nodes of a cluster."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.ray.conftest import TwoNodes
from tests.ray.test_ray_executor import files_of, without_times
from tests.support.paths import ROOT
from trtopt.records import SweepReport
from trtopt.requests.build import SweepRequest
from trtopt.workflows.sweep.folder import read_sweep
from trtopt.workflows.sweep.sweep import sweep_models

MODELS = [ROOT / "models" / name / f"{name}.onnx" for name in ("digits", "digits_transformer")]


def swept(output: Path, executor: str) -> list[SweepReport]:
    how = {"backend": "onnxruntime", "executor": executor}
    request = SweepRequest(MODELS[0], output, batch=(1, 2), duration=0.5, warmup=0.0, **how)  # type: ignore[arg-type]
    outcomes = sweep_models(MODELS, request)
    return [one for one in outcomes.values() if isinstance(one, SweepReport)]


def test_models_are_swept_as_on_one_host(cluster: TwoNodes, tmp_path: Path) -> None:
    there = swept(tmp_path / "there", "ray")
    here = swept(tmp_path / "here", "local")
    assert [without_times(report) for report in there] == [without_times(report) for report in here]
    assert [len(report.measured) for report in there] == [2, 2]
    assert files_of(tmp_path / "there") == files_of(tmp_path / "here")


def test_models_whose_sweep_is_interrupted_go_on_after_what_is_measured(
    cluster: TwoNodes, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "trtopt",
        "sweep",
        *map(str, MODELS),
        "-o",
        str(tmp_path),
        "--batch",
        "1,2",
    ]
    options = ["--backend", "onnxruntime", "--duration", "1", "--warmup", "0", "--executor", "ray"]
    with subprocess.Popen([*command, *options], cwd=ROOT, stderr=subprocess.PIPE, text=True) as driver:
        assert driver.stderr is not None
        for line in driver.stderr:
            if "samples/s" in line:
                break
        driver.send_signal(signal.SIGINT)
        said = driver.stderr.read()
    assert driver.returncode == 130
    assert "run the same command again" in said
    points = [point for folder in tmp_path.glob("*.sweep") for point in read_sweep(folder).points]
    assert 0 < len(points) < 2 * len(MODELS)
    assert [point.failure for point in points] == [None] * len(points)
    kept = {path: path.read_bytes() for path in tmp_path.glob("*.sweep/results/*.json")}
    again = subprocess.run([*command, *options], cwd=ROOT, check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert {path: path.read_bytes() for path in kept} == kept
