"""Timing caches of builds that run elsewhere: they begin with the driver's and only the driver merges."""

import shutil
from pathlib import Path

import pytest

from tests.support.trt_exercise import DIGITS
from tests.unit.builder.test_timing_cache_of_build import HOT, Bench
from trtopt.builder.engine import BuildJob
from trtopt.builder.timing_cache import BuildCaches, read_cache
from trtopt.device.tensorrt.builder import TensorRTBuilder
from trtopt.executors.transfer import add_timings


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def job_of(bench: Bench) -> BuildJob:
    folder = bench.folder / "driver"
    folder.mkdir()
    return BuildJob(
        onnx=str(DIGITS),
        types=("float32",),
        plan=bench.plan(),
        folder=str(folder),
        timing_cache=str(folder / "timing.cache"),
        store=str(bench.store.folder),
    )


def caches_of(bench: Bench, job: BuildJob) -> BuildCaches:
    caches = BuildCaches(bench.by, job.plan, job.timing_cache, job.store)
    caches.start()
    return caches


def test_a_build_begins_with_the_store_and_adds_to_what_others_have_stored_meanwhile(bench: Bench) -> None:
    bench.build("earlier")
    job = job_of(bench)
    caches = caches_of(bench, job)
    assert caches.begun_with == bench.stored()
    there = bench.folder / "node"
    there.mkdir()
    shutil.copyfile(bench.stored(), there / "timing.cache")
    engine = bench.build("node", store=False)
    assert engine.timing_cache_in == read_cache(bench.stored()).sha256
    bench.build("meanwhile", file=False)
    others = read_cache(bench.stored()).blob
    own = (there / "timing.cache").read_bytes()
    added = add_timings(caches, engine, own)
    stored = read_cache(bench.stored()).blob
    assert others in stored
    assert read_cache(there / "timing.cache").blob in stored
    assert read_cache(Path(str(job.timing_cache))).sha256 == added.timing_cache_out


def test_what_file_and_store_have_alike_is_merged_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(bench)
    caches, other = caches_of(bench, job), caches_of(bench, job)
    merged: list[tuple[bytes, bytes]] = []

    def merge(builder: TensorRTBuilder, ours: bytes, theirs: bytes) -> bytes:
        merged.append((ours, theirs))
        return ours + theirs

    monkeypatch.setattr(TensorRTBuilder, "merge_timing_caches", merge)
    other.save(b"of another build", ())
    saved = caches.save(b"of this build", ())
    assert merged == [(b"of this build", b"of another build")]
    assert saved is not None
    assert read_cache(bench.stored()).blob == saved.blob == b"".join(merged[0])


def test_a_first_build_has_no_file_to_begin_with(bench: Bench) -> None:
    assert caches_of(bench, job_of(bench)).begun_with is None


def test_timings_of_a_slowed_gpu_are_not_kept_here_either(bench: Bench) -> None:
    caches = caches_of(bench, job_of(bench))
    bench.build("calm", store=False)
    content = (bench.folder / "calm" / "timing.cache").read_bytes()
    slowed = bench.build("hot", clocks=(HOT,), store=False)
    added = add_timings(caches, slowed, content)
    assert added.timing_cache_out is None
    assert added.notes == slowed.notes
    assert not bench.stored().exists()
