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
    table = done.stdout.strip()
    assert "\n| all | " in table
    assert table in (STUDY / "README.md").read_text()
