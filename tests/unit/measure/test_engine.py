import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support import examples
from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedTarget
from tests.support.scripted_runs import calls_of, terms
from trtopt.errors import ArtifactError, DataError, DeviceError, IncompatibleEngineError
from trtopt.measure.engine import BenchJob, DescribeJob, LoadedEngine, bench_engine, check_fits, describe
from trtopt.measure.load.arrivals import Goal
from trtopt.measure.load.load_pass import LoadSettings
from trtopt.measure.statistics.summaries import throughput
from trtopt.records import BenchPoint, DeviceInfo

ENGINE = b"an engine"
SCRIPTED = DeviceInfo(kind="scripted", name="scripted device")


def engine_in(folder: Path, **changes: object) -> LoadedEngine:
    """An engine file in `folder` that fits the scripted target, but for the changes to what is said of it."""
    path = folder / "batch8.engine"
    path.write_bytes(ENGINE)
    plan = msgspec.structs.replace(examples.plan(), backend=ScriptedTarget.backend)
    own = {"plan": plan, "sha256": hashlib.sha256(ENGINE).hexdigest(), "device": SCRIPTED}
    artifact = msgspec.structs.replace(examples.engine(), **own | changes)
    return LoadedEngine(path=str(path), artifact=artifact, batch=8, shapes={"x": (8, 4)})


def job_in(folder: Path, **changes: object) -> BenchJob:
    """A short job over it."""
    job = BenchJob(
        engine=engine_in(folder),
        data=None,
        contract=terms("trtexec-11"),
        warmup_s=0.0,
        duration_s=0.01,
        layers=False,
        memory=False,
    )
    return msgspec.structs.replace(job, **changes)


def bench(device: ScriptedDevice, job: BenchJob) -> BenchPoint:
    return bench_engine(ScriptedTarget(device), job, lambda phase, fraction: None)


def test_latency_and_throughput_are_passes_of_their_own(tmp_path: Path) -> None:
    device = ScriptedDevice()
    point = bench(device, job_in(tmp_path))
    assert point.batch == 8
    assert point.latency.mode == "latency"
    assert point.throughput is not None
    assert point.throughput.mode == "throughput"
    assert point.latency.engine.sha256 == hashlib.sha256(ENGINE).hexdigest()
    assert point.latency.engine.label == "batch8"
    assert (point.layers, point.memory) == (None, None)
    assert device.calls.count("load") == 1
    assert device.open == 0


def test_a_contract_without_a_queue_has_no_throughput_pass(tmp_path: Path) -> None:
    assert bench(ScriptedDevice(), job_in(tmp_path, contract=terms("isolated"))).throughput is None
    two = job_in(tmp_path, contract=terms("isolated", streams=2))
    assert bench(ScriptedDevice(), two).throughput is not None


def test_layers_and_memory_are_passes_of_their_own_that_change_no_sample(tmp_path: Path) -> None:
    device = ScriptedDevice(Script(layers={"conv": 1.5}))
    phases: list[str] = []
    job = job_in(tmp_path, layers=True, memory=True)
    point = bench_engine(ScriptedTarget(device), job, lambda phase, fraction: phases.append(phase))
    assert phases == ["latency", "throughput", "layers", "memory"]
    assert point.layers is not None
    assert [layer.name for layer in point.layers.layers] == ["conv"]
    assert point.memory is not None
    assert [event.phase for event in point.memory.events] == ["load"]
    alone = bench(ScriptedDevice(), job_in(tmp_path))
    assert (point.latency, point.throughput) == (alone.latency, alone.throughput)
    assert device.calls.count("load") == 2
    assert device.open == 0


def test_a_load_is_a_pass_of_its_own_that_changes_no_sample(tmp_path: Path) -> None:
    settings = LoadSettings(arrivals="constant", rate=400.0)
    phases: list[str] = []
    job = job_in(tmp_path, load=settings, layers=True)
    point = bench_engine(ScriptedTarget(ScriptedDevice()), job, lambda phase, fraction: phases.append(phase))
    assert phases == ["latency", "throughput", "load", "layers"]
    assert point.load is not None
    assert point.load.arrived == len(point.load.latency_ms) == 4
    alone = bench(ScriptedDevice(), job_in(tmp_path))
    assert (point.latency, point.throughput) == (alone.latency, alone.throughput)


def test_a_search_begins_at_half_the_throughput(tmp_path: Path) -> None:
    settings = LoadSettings(arrivals="constant", goal=Goal(50.0, 5.0))
    point = bench(ScriptedDevice(), job_in(tmp_path, load=settings))
    assert point.throughput is not None
    assert point.load_search is not None
    first = throughput(point.throughput.samples, 8).queries_per_s / 2
    assert point.load_search.probes[0].rate == first
    assert point.load_search.rate is not None


def test_after_a_load_in_which_the_device_failed_no_pass_is_tried(tmp_path: Path) -> None:
    settings = LoadSettings(arrivals="constant", rate=400.0)
    whole = ScriptedDevice()
    bench(whole, job_in(tmp_path, load=settings, duration_s=0.1))
    device = ScriptedDevice(Script(fail_at=("launch", whole.calls.count("launch") - 10)))
    job = job_in(tmp_path, load=settings, duration_s=0.1, layers=True, memory=True)
    point = bench(device, job)
    assert point.load is not None
    assert point.load.failure == "scripted failure of launch"
    assert len(point.load.latency_ms) >= 20
    assert (point.layers, point.memory) == (None, None)
    assert device.open == 0


@pytest.mark.parametrize("content", [b"", b"another engine", ENGINE + b"\n"])
def test_an_engine_that_its_manifest_does_not_vouch_for_is_never_loaded(
    tmp_path: Path, content: bytes
) -> None:
    job, device = job_in(tmp_path), ScriptedDevice()
    (tmp_path / "batch8.engine").write_bytes(content)
    with pytest.raises(ArtifactError, match="it was not loaded"):
        bench(device, job)
    assert device.calls == []


def test_an_engine_that_is_gone_is_an_artifact_error(tmp_path: Path) -> None:
    job, device = job_in(tmp_path), ScriptedDevice()
    (tmp_path / "batch8.engine").unlink()
    with pytest.raises(ArtifactError, match="cannot be read"):
        bench(device, job)
    assert device.calls == []


def test_an_engine_of_another_version_is_refused_with_both_and_never_loaded(tmp_path: Path) -> None:
    job, device = job_in(tmp_path, engine=engine_in(tmp_path, plan=examples.plan())), ScriptedDevice()
    with pytest.raises(IncompatibleEngineError) as caught:
        bench(device, job)
    assert "built by tensorrt 10.16.1, this machine has scripted 1" in caught.value.problem
    assert device.calls == []


@pytest.mark.parametrize("field", ["name", "compute_capability"])
def test_an_engine_for_another_gpu_is_refused_and_says_what_differs(tmp_path: Path, field: str) -> None:
    class OnGpu(ScriptedDevice):
        @property
        def info(self) -> DeviceInfo:
            return examples.GPU

    target = ScriptedTarget(OnGpu())
    artifact = engine_in(tmp_path, device=examples.GPU).artifact
    check_fits(artifact, target)
    other = msgspec.structs.replace(examples.GPU, **{field: "something else"})
    with pytest.raises(IncompatibleEngineError) as caught:
        check_fits(msgspec.structs.replace(artifact, device=other), target)
    assert "something else" in caught.value.problem
    assert str(getattr(examples.GPU, field)) in caught.value.problem


def test_the_users_data_is_what_is_measured(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((3, 4), np.float32))
    assert bench(ScriptedDevice(), job_in(tmp_path, data=str(tmp_path / "data.npz"))).latency.batch == 8
    np.savez(tmp_path / "data.npz", z=np.ones((3, 4), np.float32))
    device = ScriptedDevice()
    with pytest.raises(DataError, match="no array named 'x'"):
        bench(device, job_in(tmp_path, data=str(tmp_path / "data.npz")))
    assert device.open == 0


def test_a_call_that_fails_in_any_pass_closes_everything(tmp_path: Path) -> None:
    job = job_in(tmp_path, layers=True, memory=True)
    made = calls_of(lambda device: bench(device, job))
    last = dict(made)
    for name, count in sorted({(name, n) for name, end in last.items() for n in (1, end // 2, end) if n}):
        device = ScriptedDevice(Script(fail_at=(name, count)))
        try:
            told = bench(device, job).failure
        except DeviceError as error:
            told = error.problem
        assert told == f"scripted failure of {name}"
        assert (device.open, device.used) == (0, 0), (name, count)


def test_an_engine_is_described_with_its_memory_and_if_requested_its_layers(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    job = DescribeJob(path=job.engine.path, sha256=job.engine.artifact.sha256, backend="scripted")
    short, whole = (
        describe(
            ScriptedTarget(ScriptedDevice(Script(inspector="layers"))),
            msgspec.structs.replace(job, with_layers=is_whole),
        )
        for is_whole in (False, True)
    )
    assert short.layers is None
    assert whole.layers == "layers"
    assert whole.context_bytes == short.context_bytes is not None
