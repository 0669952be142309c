"""Kernels by CUPTI, cold starts and pauses, on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import trtopt
from trtopt.records.bench import START_PHASES

pytest.importorskip("cupti")


def test_every_kernel_is_recorded_and_reconciles_with_the_latency(built: Path, binding: str) -> None:
    (engine,) = trtopt.profile(built, batch=8, kernels=True, duration=0.5).engines
    kernels = engine.kernels
    assert kernels is not None
    assert kernels.rows
    assert kernels.dropped == 0
    assert all(row.name and row.ms > 0 for row in kernels.rows)
    assert all(row.grid >= (1, 1, 1) and row.registers > 0 for row in kernels.rows if row.kind == "kernel")
    assert kernels.remainder_ms is not None
    assert kernels.latency_ms is not None
    print(kernels.graph, kernels.notes, kernels.busy_ms, kernels.gap_ms, kernels.remainder_ms)
    assert kernels.busy_ms + kernels.gap_ms < 2 * kernels.latency_ms
    assert any(row.confidence != "unknown" for row in kernels.rows)


def test_a_kernel_is_in_the_layer_whose_nvtx_range_its_launch_lies_in(built: Path, binding: str) -> None:
    (engine,) = trtopt.profile(built, batch=8, kernels=True, duration=0.5).engines
    kernels = engine.kernels
    assert kernels is not None
    print(kernels.notes, [(row.layer_confidence, row.layer, row.name) for row in kernels.rows])
    assert not any("NVTX ranges" in note for note in kernels.notes)
    names = {layer.name for layer in engine.layers}
    certain = [row for row in kernels.rows if row.layer_confidence == "certain"]
    assert {row.layer for row in certain} <= names
    assert len(certain) > len(kernels.rows) / 2  # what the CUDA runtime launched is at most likely


def test_an_engine_starts_on_a_gpu_in_every_phase(built: Path, binding: str) -> None:
    report = trtopt.bench(built, batch=8, duration=0.2, cold_start=True)
    cold = report.points[0].cold_start
    assert cold is not None
    assert len(cold.starts) >= 5
    assert all(tuple(start.ms) == START_PHASES for start in cold.starts)
    assert cold.module_loading == "LAZY"
