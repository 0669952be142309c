"""`--nvtx` and `--cuda-profiler` where there is no GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.command_line import DIGITS, CommandLine

has_no_nvtx = pytest.mark.skipif(
    importlib.util.find_spec("nvtx") is not None, reason="tells what happens without the package nvtx"
)

STAND_IN = """
import os
from contextlib import contextmanager

@contextmanager
def annotate(message, domain):
    with open(os.environ["RANGES"], "a") as file:
        print(message, file=file)
    yield
"""


@has_no_nvtx
@pytest.mark.parametrize("command", ["bench", "profile"])
def test_ranges_without_the_package_are_refused_before_anything_is_done(
    trtopt_cli: CommandLine, command: str
) -> None:
    told = trtopt_cli.fails(1, command, DIGITS, "--nvtx")
    assert "the package 'nvtx' is not installed" in told
    assert "pip install nvtx" in told


@pytest.fixture
def ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `nvtx` for worker processes that writes the names of its ranges into this file."""
    (tmp_path / "stand_in").mkdir()
    (tmp_path / "stand_in" / "nvtx.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path / "stand_in"))
    monkeypatch.setenv("RANGES", str(tmp_path / "ranges.txt"))
    return tmp_path / "ranges.txt"


def test_workers_mark_what_they_do(ranges: Path, cpu_build: Path) -> None:
    import trtopt

    trtopt.bench(cpu_build, batch=[8], duration=0.1, warmup=0.01, nvtx=True, layers=True)
    seen = ranges.read_text().splitlines()
    sampled = ["warm-up", "group 0", "stages 0"]
    assert seen == ["latency", *sampled, "bare loop 0", "throughput", *sampled, "layers"]


def test_a_processor_has_no_cuda_profiler_to_start(cpu_build: Path, trtopt_cli: CommandLine) -> None:
    told = trtopt_cli.fails(2, "bench", cpu_build, "--cuda-profiler")
    assert "--cuda-profiler: a processor has no CUDA to profile" in told
