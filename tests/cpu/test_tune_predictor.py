"""The study of tuning's predictor: what it publishes is what the present predictor does on its ledgers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.long

STUDY = ROOT / "benchmarks" / "tune"


def test_the_published_score_is_that_of_a_replay_of_the_stored_ledgers() -> None:
    done = subprocess.run(
        [sys.executable, STUDY / "predictor.py", "replay"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    all_of_them = next(line.split() for line in done.stdout.splitlines() if line.startswith("all "))
    _, measured, accepted, error, rank = all_of_them
    row = next(
        line.strip("| ").split(" | ")
        for line in (STUDY / "README.md").read_text().splitlines()
        if line.startswith("| all |")
    )
    assert row == ["all", measured, accepted, error.replace("%", " %"), rank]
