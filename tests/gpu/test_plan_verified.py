"""`trtopt plan --verify` on a real GPU: from a sweep to a plan that has been served."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import trtopt
from tests.support.gpu_digits import DIGITS, HELDOUT, SOURCES
from trtopt.files.manifests import read_plan
from trtopt.serving import DynamicBatcher, EnginePool

BATCHES = (1, 4, 16)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu") / "sweep"
    trtopt.sweep(
        DIGITS,
        folder,
        batch=BATCHES,
        streams=(1, 2),
        backend="tensorrt",
        tactic_sources=SOURCES,
        duration=0.5,
    )
    return folder


@pytest.fixture(scope="module")
def planned(swept: Path) -> Path:
    """By the command, as a user would; a small model and a wide goal, so that a busy host does not matter."""
    path = swept.parent / "plan.json"
    flags = ["--slo", "p99=50ms", "--rate", "1000", "--memory", "2GiB", "--verify"]
    done = subprocess.run(
        [sys.executable, "-m", "trtopt", "plan", str(swept), "-o", str(path), *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "verified: " in done.stdout
    return path


def test_every_request_of_the_trial_is_answered_and_reported_next_to_the_prediction(planned: Path) -> None:
    plan = read_plan(planned)
    done = plan.verification
    assert done is not None
    assert done.environment.device.kind == "gpu"
    assert (done.answered, done.rejected, done.failed) == (done.requests, 0, 0)
    assert done.requests == pytest.approx(len(done.runs) * plan.prediction.requests, rel=0.05)
    assert 0 < done.total.p50_ms <= done.total.p99_ms


def test_memory_was_measured_and_what_serving_adds_is_known(planned: Path) -> None:
    plan = read_plan(planned)
    assert plan.memory_bytes is not None
    assert 0 < plan.memory_bytes <= 2 << 30
    assert not any("unknown" in note for note in plan.notes)


def test_the_plan_is_served_from(planned: Path) -> None:
    images = np.load(HELDOUT)["images"]
    with EnginePool.open(planned) as pool, DynamicBatcher(pool) as batcher:
        answers = [batcher.submit(image).result(60)["logits"] for image in images[:50]]
    assert {answer.shape for answer in answers} == {(10,)}
