"""Engines built at once, each on a GPU of its own; measured on the first."""

from __future__ import annotations

from pathlib import Path

import pytest

import trtopt
from tests.support.gpu_digits import DIGITS, SOURCES
from trtopt.device.cuda import probe
from trtopt.files.manifests import read_manifest

pytestmark = pytest.mark.skipif(len(probe.names_of_a_kind()) < 2, reason="needs two GPUs of one kind")


def test_engines_are_built_on_the_gpus_in_turn_and_run_on_the_first(tmp_path: Path) -> None:
    asked = {"batch": (1, 8), "backend": "tensorrt", "tactic_sources": SOURCES, "jobs": 2, "duration": 0.3}
    report = trtopt.sweep(DIGITS, tmp_path / "s", **asked)
    assert report.measured == report.points
    first, second = (gpu.uuid for gpu in probe.gpus()[:2])
    engines = read_manifest(tmp_path / "s" / "builds" / "model").engines
    assert {engine.device.uuid for engine in engines} == {first, second}
    assert report.environment is not None
    assert report.environment.device.uuid == first
