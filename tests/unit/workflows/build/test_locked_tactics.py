"""`build --lock` and `--locked`, on stand-ins for TensorRT whose timings change from build to build."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.scripted_device.device import ScriptedDevice
from tests.support.scripted_device.script import Script
from tests.support.trt_exercise import DIGITS, builder
from tests.support.trt_surface import Surface
from trtopt.builder.engine import build_engine
from trtopt.device.backends import BackendChoice
from trtopt.device.tensorrt.builder import TensorRTBuilder
from trtopt.errors import ArtifactError, BuildError, OutputError, TrtoptError, UsageError
from trtopt.recipe import Recipe
from trtopt.records import DeviceInfo, Manifest, TacticLock, from_json, to_json
from trtopt.workflows.build import build as workflow

SLOW_FIRST = {"IAlgorithm.timing_msec": lambda algorithm: -algorithm._state["tactic"]}
FP32, FP16, INT8 = (
    {"Name": "x", "Dimensions": [8], "Format/Datatype": text}
    for text in ("Row major linear FP32", "Row major linear FP16 format", "Row major Int8 format")
)
REFORMAT = {"LayerType": "Reformat", "TacticValue": "0x00000000000003e8"}
LAYERS = {
    "Layers": [
        {"Name": "fc", "LayerType": "CaskGemm", "TacticValue": "0x0000000000000007"},
        {"Name": "nothing", "LayerType": "NoOp", "TacticValue": "0x0000000000000000"},
        {**REFORMAT, "Name": "copied", "Inputs": [FP32], "Outputs": [FP32]},
        {**REFORMAT, "Name": "rounded", "Inputs": [FP32], "Outputs": [FP16]},
        {**REFORMAT, "Name": "scaled", "Inputs": [FP32], "Outputs": [INT8]},
        {"Name": "unasked", "LayerType": "CaskGemm", "TacticValue": "0x0000000000000003"},
        {"Name": "{ForeignNode[a...b]}", "LayerType": "Myelin", "TacticValue": "0x0000000000000000"},
    ]
}


class Here:
    """An executor whose jobs run in this process."""

    def __init__(self, by: TensorRTBuilder) -> None:
        self._by = by

    def run_all_jobs(self, jobs: Any, **_: Any) -> Iterator[tuple[int, Any]]:
        for index, job in enumerate(jobs):
            decoded = from_json(msgspec.json.encode(job), type(job))  # as it reaches a worker
            try:
                yield index, build_engine(self._by, decoded, lambda phase, fraction: None)
            except TrtoptError as error:
                yield index, error


class Bench:
    """Builds of the digits model in one folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.lock, self._monkeypatch = folder, folder / "digits.lock.json", monkeypatch
        device = ScriptedDevice(Script())
        monkeypatch.setattr("trtopt.builder.engine.open_sensor", lambda info: device.clock_sensor())
        monkeypatch.setattr(TensorRTBuilder, "device_memory", lambda by: None)

    def build(
        self,
        name: str = "out",
        *,
        dump: str = "tensorrt-8.6.0",
        returns: dict[str, Any] | None = None,
        gpu: str = "a GPU",
        recipe: Recipe | None = None,
        **given: Any,
    ) -> Manifest:
        by = builder(Surface(dump, returns))
        by.device = DeviceInfo(kind="gpu", name=gpu)
        choice = BackendChoice("tensorrt", "requested")
        self._monkeypatch.setattr(workflow, "choose_for_building", lambda requested: choice)
        self._monkeypatch.setattr(workflow, "open_builder", lambda name: by)
        recipe = recipe or Recipe(batch=(1, 8), rewrite="none")
        cache = self.folder / "store"
        executor: Any = Here(by)
        return workflow.build_recipe(
            DIGITS, self.folder / name, recipe, cache_dir=cache, executor=executor, **given
        )

    def tactics(self, name: str) -> list[Any]:
        files = sorted((self.folder / name).glob("*.tactics.json"))
        return [json.loads(file.read_text())["engines"] for file in files]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_a_locked_build_has_the_tactics_of_the_build_that_wrote_the_lock(bench: Bench) -> None:
    bench.build("a", lock=bench.lock)
    written = from_json(bench.lock.read_bytes(), TacticLock)
    assert [*written.engines] == ["batch1", "batch8"]
    bench.build("b", returns=SLOW_FIRST, lock=bench.folder / "free.json")
    locked = bench.build("c", returns=SLOW_FIRST, locked=bench.lock)
    assert bench.tactics("a") == bench.tactics("c")
    assert bench.tactics("a") != bench.tactics("b")
    assert all(engine.notes[-1].endswith("held") for engine in locked.engines)
    assert not (bench.folder / "store").exists()


def test_a_layer_that_is_not_held_fails_the_build_and_leaves_nothing(bench: Bench) -> None:
    bench.build("a", lock=bench.lock)
    text = bench.lock.read_text().replace("0x0000000000000007", "0x0000000000000008")
    bench.lock.write_text(text)
    with pytest.raises(BuildError, match="not held: fc"):
        bench.build("b", locked=bench.lock)
    assert not (bench.folder / "b").exists()


def test_what_the_lock_does_not_reach_is_an_alarm(bench: Bench) -> None:
    returns = {"EngineInspector.get_engine_information": json.dumps(LAYERS)}
    alarms = bench.build(returns=returns, lock=bench.lock, recipe=Recipe(batch=(8,), rewrite="none")).alarms
    assert [alarm.split(": ")[1] for alarm in alarms] == ["scaled", "unasked", "{ForeignNode[a...b]}"]
    (unknown, *_) = bench.build("b", lock=bench.folder / "b.json").alarms  # the inspector says nothing
    assert "is not known" in unknown


@pytest.mark.parametrize(
    ("terms", "named"),
    [
        ({"gpu": "another GPU"}, "another GPU"),
        ({"dump": "tensorrt-10.0.1"}, "10.0.1"),
        ({"recipe": Recipe(batch=(4,), rewrite="none")}, "batch4"),
    ],
)
def test_a_lock_of_something_else_is_refused_with_the_reason(
    bench: Bench, terms: dict[str, Any], named: str
) -> None:
    bench.build("a", lock=bench.lock)
    with pytest.raises(ArtifactError, match=named):
        bench.build("b", locked=bench.lock, **terms)
    assert not (bench.folder / "b").exists()


@pytest.mark.parametrize(
    ("terms", "option"),
    [
        ({"dump": "tensorrt_rtx-1.7.1.116"}, "--lock"),
        ({"dump": "tensorrt-10.16.1.11"}, "--reproducible"),
        ({"recipe": Recipe(precision="int8")}, "--precision"),
        ({"recipe": Recipe(timing_cache="mine.cache")}, "--timing-cache"),
    ],
)
def test_a_build_that_a_lock_cannot_decide_is_refused(
    bench: Bench, terms: dict[str, Any], option: str
) -> None:
    with pytest.raises(UsageError, match=option):
        bench.build(lock=bench.lock, **terms)
    assert not bench.lock.exists()


def test_a_lock_that_is_there_is_kept(bench: Bench) -> None:
    """`--lock` in place of `--locked` must neither pass nor forget the tactics."""
    bench.build("a", lock=bench.lock)
    before = bench.lock.read_bytes()
    for terms in ({}, {"locked": bench.lock}):
        with pytest.raises(OutputError, match="--locked"):
            bench.build("b", returns=SLOW_FIRST, lock=bench.lock, **terms)
    assert bench.lock.read_bytes() == before
    assert not (bench.folder / "b").exists()


def test_a_lock_that_holds_nothing_is_refused(bench: Bench) -> None:
    bench.build("a", lock=bench.lock)
    whole = from_json(bench.lock.read_bytes(), TacticLock)
    for engines in ({}, whole.engines | {"batch8": ()}):
        bench.lock.write_bytes(to_json(msgspec.structs.replace(whole, engines=engines)))
        with pytest.raises(ArtifactError, match="no tactics"):
            bench.build("b", locked=bench.lock)
    assert not (bench.folder / "b").exists()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"schema": "trtopt.lock/1"}', b"\xff\x00"])
def test_a_damaged_lock_is_refused(bench: Bench, damage: bytes) -> None:
    bench.lock.write_bytes(damage)
    with pytest.raises(ArtifactError):
        bench.build(locked=bench.lock)
    with pytest.raises(ArtifactError):
        bench.build(locked=bench.folder)
