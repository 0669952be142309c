"""Jobs that Ray kills because their node runs out of memory, in the midst of their work."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.ray.conftest import TwoNodes
from tests.ray.test_ray_executor import BATCH, swept
from tests.ray.test_unlike_nodes import build_jobs
from trtopt.device.backends import open_builder
from trtopt.errors import DeviceError
from trtopt.executors.ray.connection import connected
from trtopt.executors.ray.executor import RayExecutor
from trtopt.processes import DONE
from trtopt.workflows.listener import Listener

TOTAL_KIB = 1 << 21
BEFORE_TENSORRT = ("receiving", "starting")


class Memory:
    """What a node is to believe of its memory, in a file."""

    def __init__(self, folder: Path) -> None:
        self.file, self.has_run_out = folder / "meminfo", False
        self._write("w", TOTAL_KIB)

    def run_out(self) -> None:
        if not self.has_run_out:
            self.has_run_out = True
            self._write("r+", 1000)  # in place: the file is mounted

    def _write(self, mode: str, available: int) -> None:
        with self.file.open(mode) as file:
            file.write(
                f"MemTotal: {TOTAL_KIB:10} kB\nMemFree: {available:10} kB\nMemAvailable: {available:10} kB\n"
            )


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path)


def slow_to_build(path: Path) -> Path:
    """A model of many convolutions, on which TensorRT-RTX works for seconds."""
    weights = np.random.default_rng(0).standard_normal((8, 8, 3, 3), np.float32)
    nodes, names = [], [f"x{layer}" for layer in range(800)]
    for before, after in pairwise(names):
        nodes.append(helper.make_node("Conv", [before, "w"], [f"{after}c"], pads=[1] * 4))
        nodes.append(helper.make_node("Sigmoid", [f"{after}c"], [after]))
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 8, 16, 16])
        for name in (names[0], names[-1])
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_a_measurement_that_is_killed_for_memory_is_made_on_another_node(
    cluster: TwoNodes, memory: Memory, tmp_path: Path
) -> None:
    active, notes = set[int](), list[str]()

    def progress(index: int, phase: str, fraction: float | None) -> None:
        if phase == DONE:
            active.discard(index)
        elif phase.startswith("latency"):
            active.add(index)
        if len(active) == len(BATCH):  # one on each node
            memory.run_out()

    with cluster.with_memory_of(memory.file):
        report = swept(tmp_path / "digits.sweep", "ray", Listener(progress=progress, note=notes.append))
    assert memory.has_run_out
    assert [(point.setting.batch, point.failure) for point in report.points] == [(one, None) for one in BATCH]
    (lost,) = [note for note in notes if "lost, and tried again" in note]
    assert "killed for memory: " in lost


def test_a_build_that_is_killed_for_memory_each_time_has_failed_for_that_reason(
    cluster: TwoNodes, memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, phases, notes = tmp_path / "out", list[str](), list[str]()
    job, *_ = build_jobs(slow_to_build(tmp_path / "slow.onnx"), out, "tensorrt-rtx")

    def progress(index: int, phase: str, fraction: float | None) -> None:
        if not phase.startswith(BEFORE_TENSORRT) and phase != DONE:
            phases.append(phase)
            memory.run_out()

    with cluster.with_memory_of(memory.file) as node, connected("ray"):
        executor = RayExecutor(open_builder("tensorrt-rtx"), retries=1, note=notes.append)
        executor.nodes.alive = tuple(one for one in executor.nodes.alive if one.id == node)
        monkeypatch.setattr(executor.nodes, "look", lambda: None)  # it is to be tried there again
        with closing(executor.run_all_jobs([job], on_progress=progress)) as outcomes:
            ((_, outcome),) = outcomes
    assert phases  # TensorRT was at work
    assert isinstance(outcome, DeviceError)
    assert outcome.problem.startswith("building batch1: lost 2 times: killed for memory: ")
    assert len([note for note in notes if "lost, and tried again: killed for memory" in note]) == 1
    assert not out.exists()  # nothing half-written
