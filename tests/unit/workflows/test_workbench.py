"""What a build says beforehand of its options, and what becomes of its plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import examples
from trtopt.builder.engine import BuildJob
from trtopt.device.cuda import probe
from trtopt.errors import ModelError, NoGpuError
from trtopt.records import Backend, BuildSettings, DeviceInfo, EngineArtifact
from trtopt.requests.recipe import make_recipe
from trtopt.workflows.workbench import Workbench, check_opset, notes_on, open_executor

H200 = DeviceInfo(kind="gpu", name="NVIDIA H200", compute_capability="9.0")
NO_GPU = DeviceInfo(kind="none", name="none: built without a GPU")


@dataclass(frozen=True)
class Builder:
    device: DeviceInfo
    uses_timing_cache: bool = True

    @property
    def backend(self) -> Backend:
        return Backend(name="tensorrt", version="10.16.1")


@dataclass(frozen=True)
class Case:
    gpus: int
    jobs: int
    engines: int
    said: tuple[str, ...]


CASES = {
    "one after the other on the one there is": Case(1, 1, 8, ()),
    "two that share it": Case(
        1,
        2,
        8,
        ("builds that share a GPU disturb each other's tactic timing: --jobs 1 gives better engines",),
    ),
    "a GPU each": Case(4, 4, 8, ()),
    "more than there are": Case(
        2,
        3,
        8,
        ("builds that share a GPU disturb each other's tactic timing: --jobs 2 gives better engines",),
    ),
    "others are idle": Case(4, 1, 8, ("4 engines could be built at a time, each on its own GPU: --jobs 4",)),
    "others than are needed are idle": Case(
        4, 1, 2, ("2 engines could be built at a time, each on its own GPU: --jobs 2",)
    ),
    "one engine has nothing to share": Case(4, 1, 1, ()),
    "so many were wanted": Case(4, 2, 8, ()),
    "no GPU": Case(0, 4, 8, ()),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_builds_at_a_time_are_told_of_gpus_that_they_share_or_leave_idle(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "gpus", lambda: (H200,) * case.gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    builder: Any = Builder(H200 if case.gpus else NO_GPU)
    said = notes_on(make_recipe(None, {"jobs": case.jobs}), builder, case.engines)
    assert tuple(said) == case.said


def test_a_timing_cache_that_no_one_reads_is_reported() -> None:
    builder: Any = Builder(NO_GPU, uses_timing_cache=False)
    (said,) = notes_on(make_recipe(None, {"timing_cache": "mine.cache"}), builder, 1)
    assert said == "tensorrt 10.16.1 does not use timing caches: mine.cache is ignored"


def test_the_newest_opset_is_read_and_the_one_after_it_is_refused() -> None:
    opset = examples.onnx().opset
    check_opset(examples.onnx(), SimpleNamespace(max_opset=opset))  # type: ignore[arg-type]
    older: Any = SimpleNamespace(max_opset=opset - 1, backend="tensorrt 8.6")
    with pytest.raises(ModelError, match=f"opset {opset} is newer than tensorrt 8.6 reads"):
        check_opset(examples.onnx(), older)


@pytest.mark.parametrize(
    ("own", "is_used", "cache", "has_store"),
    [
        (None, True, "out/timing.cache", True),
        ("none", True, "out/timing.cache", False),
        ("mine.cache", True, "mine.cache", False),
        ("mine.cache", False, None, False),
    ],
)
def test_timings_come_from_the_users_cache_or_from_the_store(
    own: str | None, is_used: bool, cache: str | None, has_store: bool, tmp_path: Path
) -> None:
    recipe = make_recipe(None, {"timing_cache": str(tmp_path / own) if own == "mine.cache" else own})
    builder: Any = Builder(NO_GPU, uses_timing_cache=is_used)
    found = Workbench(builder=builder).with_caches(recipe, tmp_path / "out", tmp_path / "store")
    assert found.cache == (tmp_path / cache if cache else None)
    assert (found.store is not None and tmp_path in found.store.parents) == has_store


class Backwards:
    """An executor whose last job is done first."""

    def run_all_jobs(self, jobs: Sequence[BuildJob], **_: object) -> Iterator[tuple[int, EngineArtifact]]:
        for index in reversed(range(len(jobs))):
            yield index, replace(examples.engine(), plan=jobs[index].plan)


def test_engines_are_in_the_order_of_their_plans_and_settings_are_kept_for_their_own_backend(
    tmp_path: Path,
) -> None:
    builder: Any = Builder(NO_GPU)
    workbench = Workbench(builder=builder, executor=Backwards())  # type: ignore[arg-type]
    settings = BuildSettings(opt_level=1)
    plans = [
        replace(examples.plan(batch), backend=Backend(name=name, version="1"), settings=settings)
        for batch, name in ((1, "tensorrt"), (8, "onnxruntime"))
    ]
    onnx = replace(examples.onnx(), sha256=plans[0].onnx_sha256)
    built = [engine.plan for engine in workbench.build_again([onnx], plans, tmp_path)]
    assert [plan.label for plan in built] == ["batch1", "batch8"]
    assert [plan.settings for plan in built] == [settings, BuildSettings()]
    assert {plan.backend for plan in built} == {builder.backend}


def test_measuring_engines_of_a_gpu_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "gpus", lambda: ())
    builder: Any = Builder(NO_GPU)
    measuring = open_executor(make_recipe(None, {}), builder, lambda text: None, measures=True)
    with pytest.raises(NoGpuError, match="no CUDA device found"), measuring:
        pass
    with open_executor(make_recipe(None, {}), builder, lambda text: None) as executor:
        assert executor.at_once == 1
