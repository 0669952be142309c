"""Layers, memory and marks for profilers, on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import trtopt
from trtopt.api import profile
from trtopt.inspect.costs import peaks_of
from trtopt.inspect.profile import timeline
from trtopt.workflows.profile.peaks import known_peaks


def test_layers_are_timed_in_replays_of_a_graph_under_the_names_of_plain_runs(
    built: Path, binding: str
) -> None:
    replayed = trtopt.bench(built, batch=[8], duration=0.2, layers=True).points[0].layers
    plain = trtopt.bench(built, batch=[8], duration=0.2, layers=True, graph=False).points[0].layers
    assert replayed is not None
    assert plain is not None
    assert (replayed.graph, replayed.notes) == (True, ())
    assert (plain.graph, plain.notes) == (False, ())
    assert [layer.name for layer in replayed.layers] == [layer.name for layer in plain.layers]
    for layer, usual in zip(replayed.layers, plain.layers, strict=True):
        assert len(layer.ms) == replayed.runs
        if max(usual.ms) == 0:  # a reformat that has nothing to move
            assert max(layer.ms) == 0
            continue
        assert min(layer.ms) > 0
        assert len(set(layer.ms)) > 1  # each replay has times of its own
    assert sum(max(layer.ms) > 0 for layer in replayed.layers) > len(replayed.layers) / 2


def test_the_profilers_start_and_stop_change_nothing_about_what_is_measured(
    built: Path, binding: str
) -> None:
    point = trtopt.bench(built, batch=[8], duration=0.2, cuda_profiler=True).points[0]
    assert point.latency.failure is None
    assert len(point.latency.samples.start_ms) >= 10


def test_further_contexts_take_the_same_and_the_driver_reports_what_was_held(
    built: Path, binding: str
) -> None:
    memory = trtopt.bench(built, batch=[8], duration=0.2, memory=True).points[0].memory
    assert memory is not None
    assert memory.failure is None
    first, second = memory.context_bytes
    assert first == second
    found = timeline(memory)
    assert found.leaked_bytes == ()
    assert found.driver_bytes is not None
    assert found.remainder_bytes == found.driver_bytes - sum(found.held_bytes.values())
    assert found.held_bytes["inputs and outputs"] == memory.buffers_bytes
    assert memory.engine_file_bytes == (built / "batch8.engine").stat().st_size


def test_probed_peaks_lie_below_the_data_sheet_and_are_kept(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = profile(built, batch=[8], duration=0.2, probe_peaks=True)
    assert report.environment is not None
    assert report.peaks is not None
    device = report.environment.device
    assert known_peaks(device) == report.peaks
    rate = report.peaks.flops["float16"]
    assert rate.source.startswith("measured"), report.notes
    assert rate.value > 0
    assert report.engines[0].roofline.floor_ms is not None
    sheet = peaks_of(device.name)
    if sheet is None:
        pytest.skip(f"no data sheet of {device.name} to hold them against")
    assert 0.5 * sheet.bandwidth.value < report.peaks.bandwidth.value < 1.05 * sheet.bandwidth.value
    assert rate.value < sheet.flops["float16"].value
