"""Nodes of a cluster that are not as they should be: each is named, and the rest goes on."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from contextlib import ExitStack, closing
from datetime import datetime, timedelta, timezone
from email.utils import localtime
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.ray.conftest import OBJECT_STORE_BYTES, TwoNodes
from tests.rewrite_graphs.case import model
from tests.support.paths import ROOT
from trtopt.builder.engine import BuildJob
from trtopt.device.api import EngineBuilder
from trtopt.device.backends import open_builder
from trtopt.executors.ray.connection import connected
from trtopt.executors.ray.executor import RayExecutor
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import Recipe
from trtopt.records import EngineArtifact
from trtopt.version import __version__
from trtopt.workflows.listener import SILENT
from trtopt.workflows.workbench import make_plans

MODEL = ROOT / "models" / "digits" / "digits.onnx"
BACKEND = "onnxruntime"


def build_jobs(path: Path, folder: Path, backend: str = BACKEND) -> list[BuildJob]:
    """One of each of three batch sizes."""
    artifact, builder = read_onnx(path), open_builder(backend)
    plans = make_plans(artifact, Recipe(batch=(1, 2, 3), backend=backend), builder.backend)
    return [
        BuildJob(onnx=str(path), types=artifact.types, plan=plan, folder=str(folder), timing_cache=None)
        for plan in plans
    ]


def large_model(path: Path) -> Path:
    """A model that is larger than a node's object store."""
    columns = OBJECT_STORE_BYTES // 4 // 64 + 50_000
    proto = model(
        f"""
        # w: float[64,{columns}]
        g (float[n,64] x) => (float[n,1] y) {{
            m = MatMul(x, w)
            y = ReduceMax <axes = [1]> (m)
        }}"""
    )
    del proto.graph.initializer[:]
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((64, columns), np.float32), "w"))
    onnx.save(proto, path)
    assert path.stat().st_size > OBJECT_STORE_BYTES
    return path


def test_nodes_with_another_trtopt_without_memory_or_with_a_full_disk_are_named_and_cost_nothing(
    cluster: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, out, notes = tmp_path / "other", tmp_path / "out", list[str]()
    shutil.copytree(ROOT / "trtopt", other / "trtopt", ignore=shutil.ignore_patterns("__pycache__"))
    (other / "trtopt" / "version.py").write_text('__version__ = "0.0.9"\n', "utf-8")
    (other / "trtopt" / "executors" / "ray" / "task.py").write_text("", "utf-8")  # which had no such task
    (tmp_path / "msgspec.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n", "utf-8")
    large = large_model(tmp_path / "large.onnx")
    out.mkdir()
    monkeypatch.chdir(tmp_path)
    with (
        cluster.another(PYTHONPATH=str(other)),
        cluster.another(RAY_memory_usage_threshold="0.001", RAY_memory_monitor_refresh_ms="50"),
        cluster.another(RAY_local_fs_capacity_threshold="0.001"),
        connected("ray"),
    ):
        executor = RayExecutor(open_builder(BACKEND), note=notes.append)
        with closing(executor.run_all_jobs(build_jobs(large, out), on_progress=SILENT.progress)) as outcomes:
            built = [outcome for _, outcome in outcomes]
    told = "\n".join(notes)
    assert "does not take part: " in told
    assert f"has trtopt 0.0.9, this machine has trtopt {__version__}" in told
    assert "does not take part: killed for memory: " in told
    assert "building batch" in told
    assert "does not fit into Ray's object store, and the disk that it would be moved to is full" in told
    assert [type(one) for one in built] == [EngineArtifact] * 3, built
    assert not (tmp_path / "imported").exists()  # nothing is imported from the current folder


def test_a_node_with_another_tensorrt_takes_no_part_and_both_versions_are_named(
    cluster: TwoNodes, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    other, notes = tmp_path / "tensorrt_rtx", list[str]()
    other.mkdir()  # the installed library, which here reports another version: a second one is 230 MB
    (other / "__init__.py").write_text(
        'from tensorrt_rtx_bindings import *\n__version__ = "1.4.0.76"\n', "utf-8"
    )
    builder = open_builder("tensorrt-rtx")
    with cluster.another(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)])), connected("ray"):
        RayExecutor(builder, note=notes.append)
    refused, taken = notes
    assert f"has tensorrt-rtx 1.4.0.76, this machine has {builder.backend}" in refused
    assert taken.startswith("Ray: jobs run on 2 nodes")


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, for a clock that is off")
def test_a_node_whose_clock_is_off_leaves_no_trace_of_it(
    cluster: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ray, library = pytest.importorskip("ray"), tmp_path / "skewed_clock.so"
    source = Path(__file__).with_name("skewed_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    began = datetime.now(timezone.utc)
    caplog.set_level(logging.INFO, "trtopt")
    with ExitStack() as added:
        preload = {"LD_PRELOAD": str(library), "RAY_LD_PRELOAD_ON_WORKERS": "1"}
        with monkeypatch.context() as own:
            for name, value in preload.items():  # else Ray has a library of its own preloaded
                own.setenv(name, value)
            node = added.enter_context(cluster.another(**preload))
        added.enter_context(connected("ray"))
        there = ray.remote(localtime).options(label_selector={"ray.io/node-id": node})
        assert ray.get(there.remote()) - began > timedelta(days=2)
        builder = open_builder(BACKEND)
        executor = RayExecutor(builder)
        executor.nodes.alive = tuple(one for one in executor.nodes.alive if one.id == node)
        monkeypatch.setattr(executor.nodes, "look", lambda: None)  # it is to run all jobs
        jobs = build_jobs(MODEL, tmp_path)
        with closing(executor.run_all_jobs(jobs, on_progress=SILENT.progress)) as outcomes:
            built = [outcome for _, outcome in outcomes]
    ended = datetime.now(timezone.utc)
    assert all(isinstance(one, EngineArtifact) for one in built)
    assert 0 < sum(one.build_seconds for one in built) < (ended - began).total_seconds()
    assert all(began.timestamp() <= record.created <= ended.timestamp() for record in caplog.records)
    assert any("process" in record.getMessage() for record in caplog.records)


class OnAnotherDriver:
    """A builder whose GPU has a driver that no node has, and which reads timing caches."""

    uses_timing_cache = True

    def __init__(self, builder: EngineBuilder) -> None:
        self.backend = builder.backend
        self.device = msgspec.structs.replace(builder.device, driver="570.1")


def test_timing_caches_of_another_driver_are_not_used_and_a_note_says_it(cluster: TwoNodes) -> None:
    notes: list[str] = []
    with connected("ray"):
        RayExecutor(OnAnotherDriver(open_builder(BACKEND)), note=notes.append)  # type: ignore[arg-type]
    assert notes[-1] == (
        "Ray: timing caches are neither read nor saved: nodes have driver None, this machine 570.1"
    )
