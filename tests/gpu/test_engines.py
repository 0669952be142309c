"""Engines built and run on a GPU."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import trtopt
from tests.support.gpu_digits import DIGITS, HELDOUT, SOURCES
from trtopt.builder.timing_cache import CacheFile, identity_of
from trtopt.device.api import AllocationTracker
from trtopt.device.backends import open_builder, open_cuda_device, open_target
from trtopt.errors import (
    ArtifactError,
    DeviceMemoryError,
    IncompatibleEngineError,
    TimingCacheError,
    UsageError,
)
from trtopt.files.manifests import read_manifest
from trtopt.measure.contracts import contract_named, with_terms
from trtopt.measure.load.arrivals import Load, arrivals_s, keeps_up
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.records import EngineArtifact


def _engine(folder: Path, label: str) -> bytes:
    return (folder / f"{label}.engine").read_bytes()


@pytest.mark.parametrize(
    ("contract", "changes"),
    [
        ("trtexec-10", {}),
        ("trtexec-10", {"pinned": False}),
        ("trtexec-11", {}),
        ("serving", {}),
        ("serving", {"graph": False}),
        ("isolated", {}),
    ],
)
def test_an_engine_computes_what_onnx_runtime_computes(
    built: Path, binding: str, contract: str, changes: dict[str, object]
) -> None:
    """In every slot and on every device set: a hundred queries, each slot's last output is looked at."""
    images = np.load(HELDOUT)["images"][:8]
    target = open_target("tensorrt")
    session = target.load(_engine(built, "batch8"))
    agreed = with_terms(contract_named(contract), changes)
    inference_stream = InferenceStream(session, {"images": images.shape}, {"images": images}, agreed)
    assert inference_stream.graph_refused is None
    for _ in range(100):
        for slot in inference_stream.slots:
            if slot.busy:
                slot.finish()
            slot.start()
    for slot in inference_stream.slots:
        slot.finish()
    expected = onnxruntime.InferenceSession(str(DIGITS)).run(None, {"images": images})[0]
    received = [outputs["logits"] for outputs in inference_stream.outputs()]
    assert len(received) == (len(inference_stream.slots) if agreed.transfers else 1)
    for logits in received:
        # TF32 is on by default: ten mantissa bits in the products
        assert np.abs(logits - expected).max() <= 2e-2 * np.abs(expected).max()
        assert (logits.argmax(1) == expected.argmax(1)).all()
    inference_stream.close()
    session.close()
    target.close()


def test_the_manifest_says_where_and_how_the_engines_were_made(built: Path) -> None:
    manifest = read_manifest(built)
    assert [engine.path for engine in manifest.engines] == ["batch1.engine", "batch8.engine"]
    for engine in manifest.engines:
        assert engine.device.kind == "gpu"
        assert engine.device.driver is not None
        assert engine.plan.backend.name == "tensorrt"
        assert set(engine.builder_config["tactic_sources"].split()) == set(SOURCES)
        assert engine.timing_cache_out is not None
        assert engine.build_seconds > 0
    assert manifest.engines[1].timing_cache_in == manifest.engines[0].timing_cache_out


@pytest.mark.parametrize("contract", ["trtexec-10", "trtexec-11"])
def test_bench_measures_every_engine_with_either_binding(built: Path, binding: str, contract: str) -> None:
    report = trtopt.bench(built, contract=contract, duration=0.3, data=HELDOUT)
    assert [point.batch for point in report.points] == [1, 8]
    assert report.environment.device.binding is not None
    assert report.environment.device.binding.startswith(binding)
    for point in report.points:
        assert point.throughput is not None
        for measurement in (point.latency, point.throughput):
            stages = measurement.staged
            assert measurement.contract.name == contract
            assert len(measurement.samples.start_ms) >= 10
            assert min(stages.gpu_compute_ms) > 0
            assert bool(stages.h2d_ms) == (contract == "trtexec-10")
        # one query in flight: the device's time lies within the host's
        latency = point.latency.staged
        assert all(a <= b for a, b in zip(latency.gpu_compute_ms, latency.latency_ms, strict=True))


def test_two_streams_have_contexts_of_their_own(built: Path, binding: str) -> None:
    report = trtopt.bench(built, batch=[1], streams=2, duration=0.3)
    throughput = report.points[0].throughput
    assert throughput is not None
    assert set(throughput.samples.inference_stream) == {0, 1}
    assert throughput.contract.name == "trtexec-11+streams=2"


def test_a_low_load_loses_no_request_and_achieves_what_is_offered(built: Path, binding: str) -> None:
    report = trtopt.bench(built, batch=[1], load="poisson:200", duration=1.0)
    load = report.points[0].load
    assert load is not None
    assert load.failure is None
    planned_s = arrivals_s(Load(200.0, "poisson"), 1.0, load.seed)
    assert load.arrival_ms == pytest.approx([at * 1e3 for at in planned_s], abs=1e-6)
    assert load.arrived == len(planned_s) == len(load.latency_ms)
    assert keeps_up(load)
    assert min(load.waiting_ms) >= 0
    assert min(load.lag_ms) >= 0


@pytest.mark.parametrize("graph", [True, False])
def test_serving_runs_every_stream(built: Path, binding: str, graph: bool) -> None:
    report = trtopt.bench(built, batch=[8], contract="serving", streams=3, graph=graph, duration=0.3)
    throughput = report.points[0].throughput
    assert throughput is not None
    stages = throughput.staged
    assert set(throughput.samples.inference_stream) == {0, 1, 2}
    assert len(stages.h2d_ms) == len(stages.d2h_ms) == len(stages.start_ms)
    assert throughput.contract.graph == graph


def test_layers_are_timed_in_a_pass_of_their_own(built: Path, binding: str) -> None:
    report = trtopt.bench(built, batch=[8], duration=0.2, layers=True)
    layers = report.points[0].layers
    assert layers is not None
    assert len(layers.layers) >= 5
    assert all(len(layer.ms) == layers.runs for layer in layers.layers)
    assert any("conv" in layer.name.lower() for layer in layers.layers)
    assert layers.inspector is not None
    described = {layer["Name"] for layer in json.loads(layers.inspector, strict=False)["Layers"]}
    assert {layer.name for layer in layers.layers} <= described


def test_a_profile_brings_layers_nodes_and_types_together(built: Path) -> None:
    report = trtopt.profile(built, batch=[8], duration=0.2)
    (engine,) = report.engines
    assert engine.coverage.time_mapped >= 0.95
    assert engine.coverage.unmatched_times == ()
    assert engine.by_dtype[0].key == "float32"
    assert {layer.ms is not None for layer in engine.layers if layer.weights_count} == {True}


def test_a_build_keeps_its_engines_layers_and_their_receipt(built: Path) -> None:
    from trtopt.files.manifests import read_manifest
    from trtopt.workflows.build.folder import check_receipts, receipts_of

    receipts = receipts_of(built, read_manifest(built))
    assert set(receipts) == {engine.path for engine in read_manifest(built).engines}
    check_receipts(receipts)


def test_every_allocation_is_followed_and_released(built: Path, binding: str) -> None:
    report = trtopt.bench(built, batch=[8], duration=0.2, memory=True)
    memory = report.points[0].memory
    assert memory is not None
    live: dict[int, int] = {}
    for event in memory.events:
        if event.kind == "allocate":
            assert event.address % 256 == 0
            live[event.address] = event.size_bytes
        elif event.kind == "deallocate":
            assert live.pop(event.address) == event.size_bytes
    assert live == {}
    assert {event.phase for event in memory.events} >= {"load", "unload"}
    assert sum(event.size_bytes for event in memory.events if event.kind == "allocate") > 0


def test_the_tracker_sees_the_weights_while_loading(built: Path, binding: str) -> None:
    target = open_target("tensorrt")
    tracker = AllocationTracker(target.device.now)
    session = target.load(_engine(built, "batch1"), track=tracker)
    assert any(event.kind == "allocate" for event in tracker.events)
    session.close()
    target.close()


def _build(folder: Path, batch: int, cache: Path) -> EngineArtifact:
    manifest = trtopt.build(
        DIGITS, folder, batch=(batch,), backend="tensorrt", tactic_sources=SOURCES, timing_cache=str(cache)
    )
    return manifest.engines[0]


def test_a_second_build_is_served_by_the_timing_cache_of_the_first(tmp_path: Path) -> None:
    cache = tmp_path / "shared.cache"
    first = _build(tmp_path / "first", 8, cache)
    second = _build(tmp_path / "second", 8, cache)
    assert first.timing_cache_in is None
    assert second.timing_cache_in == first.timing_cache_out
    assert first.timing_cache_hits is not None
    assert second.timing_cache_hits is not None
    assert second.timing_cache_hits > first.timing_cache_hits


def test_two_concurrent_builds_lose_nothing_of_a_shared_timing_cache(tmp_path: Path) -> None:
    cache, alone = tmp_path / "shared.cache", tmp_path / "alone.cache"
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda batch: _build(tmp_path / f"out{batch}", batch, cache), (2, 4)))
    _build(tmp_path / "alone", 2, alone)
    own = _build(tmp_path / "own", 2, alone).timing_cache_hits
    assert own is not None
    assert own > 0
    for batch in (2, 4):  # either build finds all that it left, as if it had been alone
        assert _build(tmp_path / f"again{batch}", batch, cache).timing_cache_hits == own


def test_a_timing_cache_of_another_gpu_is_refused_with_the_reason(built: Path, tmp_path: Path) -> None:
    here = identity_of(open_builder("tensorrt").backend, open_builder("tensorrt").device)
    stored = CacheFile(built / "timing.cache", here).load()
    assert stored is not None
    content = (built / "timing.cache").read_bytes().replace(here.gpu.encode(), b"NVIDIA Other")
    (tmp_path / "other.cache").write_bytes(content)
    with pytest.raises(TimingCacheError, match=f"gpu NVIDIA Other, here {here.gpu}"):
        trtopt.build(
            DIGITS,
            tmp_path / "out",
            backend="tensorrt",
            tactic_sources=SOURCES,
            timing_cache=str(tmp_path / "other.cache"),
        )
    assert not (tmp_path / "out").exists()


def test_garbage_as_a_timing_cache_is_refused_by_tensorrt(tmp_path: Path) -> None:
    (tmp_path / "garbage.cache").write_bytes(b"not a timing cache at all" * 100)
    with pytest.raises(TimingCacheError):
        trtopt.build(
            DIGITS,
            tmp_path / "out",
            backend="tensorrt",
            tactic_sources=SOURCES,
            timing_cache=str(tmp_path / "garbage.cache"),
        )


def test_one_dynamic_engine_serves_every_batch_in_its_range_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "dynamic"
    trtopt.build(DIGITS, folder, batch=(1, 8, 16), dynamic=True, backend="tensorrt", tactic_sources=SOURCES)
    report = trtopt.bench(folder, batch=[3, 16], duration=0.2)
    assert [point.batch for point in report.points] == [3, 16]
    with pytest.raises(UsageError, match="batch=17"):
        trtopt.bench(folder, batch=[17], duration=0.2)


def test_an_engine_that_was_changed_is_not_loaded(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built, tmp_path / "copy")
    engine = tmp_path / "copy" / "batch1.engine"
    engine.write_bytes(engine.read_bytes()[:-1] + b"x")
    with pytest.raises(ArtifactError, match="was not loaded"):
        trtopt.bench(tmp_path / "copy", batch=[1], duration=0.2)


def test_the_sign_of_integers_builds_on_86_and_is_exact(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (int64[N,64] p) => (float[N,64] y, int64[N,64] z)
        {s = Sign(p) f = Cast<to=1>(s) a = Abs(p) b = Cast<to=1>(a) y = Mul(f, b) z = Sub(a, s)}"""
    model, data = tmp_path / "sign.onnx", tmp_path / "data.npz"
    onnx.save(onnx.parser.parse_model(text), model)
    np.savez(data, p=np.random.default_rng(0).integers(-40, 40, (8, 64)))
    folder = tmp_path / "sign.trtopt"
    trtopt.build(model, folder, batch=(4,), tactic_sources=SOURCES)
    report = trtopt.check(folder, model, data=data)
    assert [output.max_abs for subject in report.subjects for output in subject.outputs] == [0, 0]


@pytest.mark.parametrize(("batch", "dynamic", "wanted"), [((8,), False, [8]), ((1, 8, 16), True, [1, 8, 16])])
def test_an_engine_without_a_manifest_is_loaded_if_it_is_trusted_and_tells_its_batch(
    tmp_path: Path, batch: tuple[int, ...], dynamic: bool, wanted: list[int]
) -> None:
    folder, lone = tmp_path / "built", tmp_path / "lone.engine"
    made = trtopt.build(
        DIGITS, folder, batch=batch, dynamic=dynamic, backend="tensorrt", tactic_sources=SOURCES
    )
    shutil.copyfile(folder / made.engines[0].path, lone)
    with pytest.raises(ArtifactError, match="was not loaded"):
        trtopt.bench(lone, duration=0.2)
    report = trtopt.bench(lone, duration=0.2, trust=["lone.engine"])
    assert [point.batch for point in report.points] == wanted
    assert report.points[0].latency.engine.sha256 == made.engines[0].sha256


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [("version", "10.9.0", "built by tensorrt 10.9.0"), ("name", "NVIDIA Other", "built for NVIDIA Other")],
)
def test_an_engine_of_another_version_or_gpu_is_refused(
    built: Path, tmp_path: Path, field: str, value: str, reason: str
) -> None:
    shutil.copytree(built, tmp_path / "copy")
    manifest = json.loads((tmp_path / "copy" / "manifest.json").read_text())
    for engine in manifest["engines"]:
        (engine["plan"]["backend"] if field == "version" else engine["device"])[field] = value
    (tmp_path / "copy" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(IncompatibleEngineError, match=reason):
        trtopt.bench(tmp_path / "copy", batch=[1], duration=0.2)


def test_interrupting_a_build_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trtopt", "build", str(DIGITS), "-o", str(tmp_path / "out")]
    command += ["--backend", "tensorrt", "--batch", "1,2,4,8,16,32,64"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob(".out.*/batch1.engine")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def full_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The GPU with all but 3 GiB taken."""
    monkeypatch.setenv("TRTOPT_CUDA", "cuda-python")
    device = open_cuda_device()
    used = device.used_bytes()
    assert used is not None
    assert device.info.memory_bytes is not None
    taken = device.device_buffer(device.info.memory_bytes - used - (3 << 30))
    yield
    taken.close()
    device.close()


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Relu over 1 GiB a sample."""
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 1 << 28]) for name in "xy"
    )
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"], name="relu")], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    path = tmp_path_factory.mktemp("large") / "large.onnx"
    onnx.save(model, str(path))
    return path


@pytest.fixture(scope="module")
def large_build(large_model: Path) -> Path:
    """Its engine for batch 4, built while there was room; its timings are no other build's."""
    folder = large_model.with_suffix(".trtopt")
    trtopt.build(
        large_model, folder, batch=(4,), backend="tensorrt", tactic_sources=SOURCES, timing_cache="none"
    )
    return folder


def test_an_engine_that_finds_no_room_is_refused_before_it_is_loaded(
    large_build: Path, full_gpu: None
) -> None:
    with pytest.raises(DeviceMemoryError, match=r"needs at least 8\.0 GiB.*held by"):
        trtopt.bench(large_build, duration=0.2)


def test_building_without_enough_device_memory_leaves_nothing(large_model: Path, full_gpu: None) -> None:
    folder = large_model.with_name("too-large")
    with pytest.raises(DeviceMemoryError, match="out of device memory"):
        trtopt.build(
            large_model, folder, batch=(4,), backend="tensorrt", tactic_sources=SOURCES, timing_cache="none"
        )
    assert not folder.exists()
