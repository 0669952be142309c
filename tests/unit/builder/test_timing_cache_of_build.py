"""A build with its cache file and the store, on stand-ins for TensorRT made of its own API dumps."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_device.device import ScriptedDevice
from tests.support.scripted_device.script import Script
from tests.support.trt_exercise import DIGITS, IMAGES, OPEN, builder, every_setting
from tests.support.trt_surface import Surface
from trtopt.builder.engine import BuildJob, build_engine
from trtopt.builder.timing_cache import (
    CacheFile,
    TimingStore,
    header_of,
    identity_of,
    read_cache,
    terms_of,
    write_cache,
)
from trtopt.device.api import BuildInput
from trtopt.device.tensorrt.builder import TensorRTBuilder
from trtopt.errors import BuildError, TimingCacheError, UsageError
from trtopt.records import BuildPlan, BuildSettings, ClockReading, EngineArtifact, ShapeRange

TRT_8, TRT_10, RTX = "tensorrt-8.6.0", "tensorrt-10.16.1.11", "tensorrt_rtx-1.7.1.116"
CALM = ClockReading(at_ms=0, sm_mhz=1980, temperature_c=50, other_processes=0)
HOT = ClockReading(at_ms=0, sm_mhz=1900, temperature_c=92, throttle=("hw_thermal_slowdown",))


def sensor(*readings: ClockReading) -> Any:
    return ScriptedDevice(Script(clocks=readings, application_mhz=1980)).clock_sensor()


class Bench:
    """One folder, one store, and builds of the digits model by one version of TensorRT."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, dump: str = TRT_10) -> None:
        self.folder, self.store, self.dump = folder, TimingStore(folder / "store"), dump
        self._monkeypatch = monkeypatch
        self.by = builder(Surface(dump))

    def build(
        self,
        name: str = "out",
        *,
        clocks: tuple[ClockReading, ...] = (CALM,),
        file: bool = True,
        store: bool = True,
        returns: dict[str, Callable[..., Any]] | None = None,
        settings: BuildSettings | None = None,
    ) -> EngineArtifact:
        """Build into a folder `name`, with a cache file in it."""
        surface = Surface(self.dump, returns)
        by = builder(surface)
        self._monkeypatch.setattr("trtopt.builder.engine.open_sensor", lambda device: sensor(*clocks))
        (self.folder / name).mkdir(exist_ok=True)
        job = BuildJob(
            onnx=str(DIGITS),
            types=("float32",),
            plan=self.plan(settings),
            folder=str(self.folder / name),
            timing_cache=str(self.folder / name / "timing.cache") if file else None,
            store=str(self.store.folder) if store else None,
        )
        return build_engine(by, job, lambda phase, fraction: None)

    def plan(self, settings: BuildSettings | None = None) -> BuildPlan:
        """Eight at once."""
        batch = ShapeRange(min=(1,), opt=(4,), max=(8,))
        return BuildPlan(
            onnx_sha256="0" * 64,
            batch=batch,
            shapes={IMAGES[0]: OPEN},
            settings=settings or BuildSettings(),
            backend=self.by.backend,
        )

    def stored(self) -> Path:
        """The store's file for these builds."""
        return self.store.file(identity_of(self.by.backend, self.by.device), terms_of(BuildSettings())).path


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_a_first_build_begins_with_nothing_and_fills_its_file_and_the_store(bench: Bench) -> None:
    engine = bench.build()
    assert (engine.timing_cache_in, engine.notes) == (None, ())
    assert read_cache(bench.folder / "out" / "timing.cache").sha256 == engine.timing_cache_out
    assert read_cache(bench.stored()).sha256 == engine.timing_cache_out
    (entry,) = bench.store.entries()
    assert entry.problem is None
    assert engine.slowed == ()


def test_the_next_folders_build_begins_with_what_the_store_has(bench: Bench) -> None:
    first = bench.build("one")
    second = bench.build("two")
    assert second.timing_cache_in == first.timing_cache_out
    third = bench.build("two")  # another engine of the same folder shares its file
    assert third.timing_cache_in == second.timing_cache_out


def test_what_others_have_stored_meanwhile_is_kept_by_a_build_that_began_with_its_file(bench: Bench) -> None:
    bench.build("one")
    bench.build("two", store=False)
    before = read_cache(bench.stored()).blob
    bench.build("two")
    assert before in read_cache(bench.stored()).blob


def test_caches_that_tensorrt_will_not_merge_are_not_damaged_and_the_larger_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(builder: TensorRTBuilder, ours: bytes, theirs: bytes) -> bytes:
        raise TimingCacheError("TensorRT will not merge", "use one file for each GPU model")

    def stored_after(present: bytes) -> tuple[bytes, EngineArtifact]:
        where, what = identity_of(bench.by.backend, bench.by.device), terms_of(BuildSettings())
        write_cache(bench.stored(), header_of(where, what), present)
        return read_cache(bench.stored()).blob, bench.build("one")

    bench.build("one")
    own = read_cache(bench.folder / "one" / "timing.cache").blob
    monkeypatch.setattr(TensorRTBuilder, "merge_timing_caches", refuse)
    for present, lost in ((bytes(4 * len(own)), "this build"), (b"x", "other builds")):
        before, engine = stored_after(present)
        assert engine.notes == (f"timings of {lost} are not kept: TensorRT will not merge",)
        after = read_cache(bench.stored()).blob
        assert (after == before) == (lost == "this build")
        assert len(after) >= len(own)
    assert list(bench.store.folder.glob("*.damaged")) == []


@pytest.mark.parametrize("left", [b"of the tactics", b""], ids=["grown", "a part was not read"])
def test_a_folders_next_engine_replaces_what_it_began_with_and_needs_no_merge(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, left: bytes
) -> None:
    def refuse(builder: TensorRTBuilder, ours: bytes, theirs: bytes) -> bytes:
        raise TimingCacheError("TensorRT will not merge", "use one file for each GPU model")

    def written(cache: Any) -> Any:
        blob = cache._state["blob"].replace(b"what of the graph", b"what " + left)
        return cache._surface.make("IHostMemory", blob + b"+")

    where, what = identity_of(bench.by.backend, bench.by.device), terms_of(BuildSettings())
    write_cache(bench.stored(), header_of(where, what), b"what of the graph")
    monkeypatch.setattr(TensorRTBuilder, "merge_timing_caches", refuse)
    for built in (1, 2, 3):  # the first begins with the store's, the others with the folder's own
        engine = bench.build("one", returns={"ITimingCache.serialize": written})
        assert engine.notes == ()
        stored, file = read_cache(bench.stored()), read_cache(bench.folder / "one" / "timing.cache")
        assert stored.blob == file.blob == b"what " + left + b"+" * built
        assert stored.sha256 == engine.timing_cache_out


@pytest.mark.parametrize("readings", [(HOT, CALM), (CALM, HOT)])
def test_timings_of_a_slowed_gpu_are_refused_and_the_engine_is_kept(
    bench: Bench, readings: tuple[ClockReading, ...]
) -> None:
    engine = bench.build(clocks=readings)
    assert (bench.folder / "out" / engine.path).is_file()
    assert engine.timing_cache_out is None
    assert not (bench.folder / "out" / "timing.cache").exists()
    assert bench.store.entries() == ()
    assert "hw thermal slowdown" in engine.notes[0]
    assert "not saved" in engine.notes[0]


def test_a_damaged_cache_of_the_store_is_set_aside_and_the_build_goes_on_without(bench: Bench) -> None:
    bench.build("one")
    path = bench.stored()
    path.write_bytes(path.read_bytes()[:-1])
    engine = bench.build("two")
    assert engine.timing_cache_in is None
    (note,) = engine.notes
    (aside,) = bench.store.folder.glob("*.damaged")
    assert str(path) in note
    assert aside.name in note
    assert CacheFile(path, identity_of(bench.by.backend, bench.by.device)).load() is not None


def test_a_cache_of_the_store_that_tensorrt_refuses_is_set_aside_and_the_build_goes_on(bench: Bench) -> None:
    bench.build("one")

    def refuse(config: Any, cache: Any, ignore_mismatch: bool) -> bool:
        return not cache._state["blob"]

    engine = bench.build("two", returns={"IBuilderConfig.set_timing_cache": refuse})
    assert engine.timing_cache_in is None
    assert "TensorRT refuses the timing cache" in engine.notes[0]
    assert len(list(bench.store.folder.glob("*.damaged"))) == 1


@pytest.mark.parametrize("has_file", [False, True])
@pytest.mark.parametrize("cured", [True, False])
def test_a_build_that_fails_with_a_cache_that_was_not_wholly_read_is_tried_without(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, cured: bool, has_file: bool
) -> None:
    where, what = identity_of(bench.by.backend, bench.by.device), terms_of(BuildSettings())
    file = bench.folder / "two" / "timing.cache"
    for path in (bench.stored(), file)[: 1 + has_file]:
        write_cache(path, header_of(where, what), b"what others have timed")
    build, began_with = TensorRTBuilder.build, []

    def complain(builder: TensorRTBuilder, given: BuildInput, *more: Any) -> Any:
        began_with.append(given.timing_cache)
        if given.timing_cache is not None or not cured:
            raise BuildError("4: The timing cache will not be used!; 10: no tactic", "simplify the node")
        return build(builder, given, *more)

    monkeypatch.setattr(TensorRTBuilder, "build", complain)
    with nullcontext() if cured else pytest.raises(BuildError, match="no tactic"):
        engine = bench.build("two")
        assert engine.timing_cache_in is None
        assert engine.notes == (
            "batch1-4-8: built without the timing cache: with it there was "
            "4: The timing cache will not be used!; 10: no tactic",
        )
    assert began_with == [b"what others have timed", None]
    assert b"what others have timed" in read_cache(bench.stored()).blob
    assert not has_file or b"what others have timed" in read_cache(file).blob
    assert list(bench.store.folder.glob("*.damaged")) == []


def test_a_file_of_the_users_that_is_damaged_or_refused_fails_the_build(bench: Bench) -> None:
    bench.build("one", store=False)
    file = bench.folder / "one" / "timing.cache"
    with pytest.raises(TimingCacheError, match="refuses"):
        bench.build("one", returns={"IBuilderConfig.set_timing_cache": False})
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TimingCacheError, match="damaged"):
        bench.build("one")


def test_a_store_that_cannot_be_written_fails_no_build(bench: Bench) -> None:
    bench.store.folder.write_text("a file in the folder's place")
    engine = bench.build()
    assert engine.timing_cache_out is not None
    assert "the timing-cache store was not written" in engine.notes[-1]


def test_a_flavour_without_timing_caches_leaves_the_store_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Bench(tmp_path, monkeypatch, RTX).build()
    assert engine.timing_cache_out is None
    assert not (tmp_path / "store").exists()


# ── editable caches ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dump", ["tensorrt-10.16.1.11", "tensorrt-11.4.0.106"])
def test_a_reproducible_build_makes_a_missing_timing_an_error(dump: str) -> None:
    surface = Surface(dump)
    library_by = builder(surface)
    config = library_by._configure(surface.make("IBuilderConfig"), (), BuildSettings(reproducible=True))
    assert {"EDITABLE_TIMING_CACHE", "ERROR_ON_TIMING_CACHE_MISS"} <= set(config["flags"].split())
    calm = library_by._configure(surface.make("IBuilderConfig"), (), BuildSettings())
    assert "ERROR_ON_TIMING_CACHE_MISS" not in calm["flags"].split()


@pytest.mark.parametrize("dump", ["tensorrt-10.16.1.11", "tensorrt-11.4.0.106"])
def test_a_reproducible_build_that_timed_what_was_missing_fails_although_tensorrt_did_not(
    dump: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, reproducible = Bench(tmp_path, monkeypatch, dump), BuildSettings(reproducible=True)

    def held(*after: str, tactic: int = 1) -> dict[str, Callable[..., Any]]:
        """A cache that holds one timing of tactic 1, and those of `tactic` once something has been built."""
        looks = iter([("conv 1x1",), after])
        tactics = iter([1] + [tactic] * len(after))

        def keys(cache: Any) -> list[Any]:
            return [cache._surface.make("TimingCacheKey", text=text) for text in next(looks)]

        def query(cache: Any, key: Any) -> Any:
            made = next(tactics)
            return cache._surface.make("TimingCacheValue", tacticHash=made, timingMSec=0.5)

        return {"ITimingCache.queryKeys": keys, "ITimingCache.query": query}

    with pytest.raises(BuildError, match=r"1 were missing, such as conv 3x3"):
        bench.build(settings=reproducible, returns=held("conv 1x1", "conv 3x3"))
    with pytest.raises(BuildError, match=r"1 were chosen again, such as conv 1x1"):
        bench.build(settings=reproducible, returns=held("conv 1x1", tactic=2))
    assert not list(tmp_path.rglob("*.engine"))
    assert bench.build(settings=reproducible, returns=held("conv 1x1")).sha256
    assert bench.build(returns=held("conv 1x1", "conv 3x3")).sha256


@pytest.mark.parametrize("dump", [TRT_8, "tensorrt-10.0.1", RTX])
def test_where_caches_are_not_editable_that_is_reported(dump: str) -> None:
    surface = Surface(dump)
    with pytest.raises(UsageError, match="--reproducible"):
        builder(surface)._configure(surface.make("IBuilderConfig"), (), BuildSettings(reproducible=True))


def test_every_setting_has_its_own_cache() -> None:
    surface = Surface(TRT_10)
    assert terms_of(every_setting(surface)) != terms_of(BuildSettings())
