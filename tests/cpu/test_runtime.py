"""A pool of real engines on ONNX Runtime: the right rows come back, whatever runs them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, strategies as st

import trtopt
from tests.support.command_line import DIGITS, HELDOUT, needs_no_gpu
from trtopt.device.backends import open_target
from trtopt.errors import ArtifactError, DataError, NoGpuError, UsageError
from trtopt.files.manifests import read_manifest
from trtopt.records import BenchReport, to_json
from trtopt.serving import EnginePool

IMAGES = np.load(HELDOUT)["images"]


@pytest.fixture(scope="module")
def pool(cpu_build: Path) -> Iterator[EnginePool]:
    with EnginePool.open(cpu_build, workers=2) as opened:
        yield opened


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return found.shape == wanted.shape and bool(np.allclose(found, wanted, atol=1e-4))


def prepared_batches(pool: EnginePool) -> set[int]:
    """At which batch sizes the pool's one worker has an engine ready."""
    (worker,) = pool._alive
    return {batch for _, batch, _ in worker._prepared}


@given(start=st.integers(0, 400), count=st.integers(1, 60))
def test_any_number_of_rows_is_answered_row_by_row(
    pool: EnginePool, right: np.ndarray, start: int, count: int
) -> None:
    outputs = pool.run({"images": IMAGES[start : start + count]})
    assert outputs.keys() == {"logits"}
    assert close(outputs["logits"], right[start : start + count])


@given(counts=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_parts_that_share_batches_get_their_own_rows(
    pool: EnginePool, right: np.ndarray, counts: list[int]
) -> None:
    ends = np.cumsum(counts)
    parts = [pool.catalogue.part(IMAGES[end - count : end]) for end, count in zip(ends, counts, strict=True)]
    answers = pool.run_parts(parts)
    for end, count, answer in zip(ends, counts, answers, strict=True):
        assert close(answer["logits"], right[end - count : end])


def test_answers_are_the_callers_own(pool: EnginePool, right: np.ndarray) -> None:
    first = pool.run(IMAGES[:8])["logits"]
    pool.run(IMAGES[8:16])
    assert close(first, right[:8])
    first[:] = 0  # and nothing of the pool's
    assert close(pool.run(IMAGES[:8])["logits"], right[:8])


def test_arrays_that_lie_in_any_way_are_read_rightly(pool: EnginePool, right: np.ndarray) -> None:
    backwards = np.ascontiguousarray(IMAGES[:8][::-1])[::-1]
    assert close(pool.run(backwards)["logits"], right[:8])
    shifted = np.frombuffer(b"\0" + IMAGES[:8].tobytes(), np.uint8)[1:].view(np.float32)
    assert not shifted.flags.aligned
    assert close(pool.run(shifted.reshape(8, 1, 8, 8))["logits"], right[:8])
    read_only = IMAGES[:8].copy()
    read_only.flags.writeable = False
    assert close(pool.run(read_only)["logits"], right[:8])


def test_many_threads_share_two_workers(pool: EnginePool, right: np.ndarray) -> None:
    def ask(index: int) -> bool:
        start, count = index % 500, 1 + index % 11
        return close(pool.run(IMAGES[start : start + count])["logits"], right[start : start + count])

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(300)))
    assert pool.usage().workers == 2
    assert pool.usage().replaced == 0


def test_threads_of_a_pool_sleep_between_runs_and_those_of_a_measurement_do_not(
    cpu_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[str] = []
    session = onnxruntime.InferenceSession

    def opened(model: bytes, options: onnxruntime.SessionOptions, **others: object) -> object:
        stops.append(options.get_session_config_entry("session.force_spinning_stop"))
        return session(model, options, **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)
    with EnginePool.open(cpu_build):
        assert set(stops) == {"1"}
    stops.clear()
    engine = read_manifest(cpu_build).engines[0]
    with closing(open_target("onnxruntime")) as target:
        target.load((cpu_build / engine.path).read_bytes())
    assert stops == ["0"]


def test_a_processor_has_no_graphs_and_the_pool_reports_it(pool: EnginePool) -> None:
    for _ in range(3):
        pool.run(IMAGES[:5])
    assert pool.usage().graphs == 0
    assert pool.usage().graph_refused == "ONNX Runtime on the CPU has no CUDA graphs"


# ── which engines ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def dynamic_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ort") / "dynamic"
    trtopt.build(DIGITS, folder, batch=(2, 4, 16), dynamic=True, backend="onnxruntime")
    return folder


def test_a_dynamic_engine_runs_the_rows_as_they_come(dynamic_build: Path, right: np.ndarray) -> None:
    with EnginePool.open(dynamic_build) as pool:
        for count in (1, 2, 3, 16, 17, 40):
            assert close(pool.run(IMAGES[:count])["logits"], right[:count])
        assert prepared_batches(pool) == {
            2,
            3,
            8,
            16,
        }  # 1 is padded up to 2, 17 is 16 and 1, 40 is 16, 16 and 8


@pytest.fixture(scope="module")
def profiles_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One engine with a profile for 1 to 4, one for 8 and one for 12 to 16; none for what is between."""
    folder = tmp_path_factory.mktemp("ort") / "profiles"
    ranges = ((1, 2, 4), (8,), (12, 16, 16))
    trtopt.build(DIGITS, folder, ranges=ranges, dynamic=True, backend="onnxruntime")
    return folder


def test_rows_run_under_the_profile_that_holds_them(profiles_build: Path, right: np.ndarray) -> None:
    with EnginePool.open(profiles_build) as pool:
        assert pool.largest_batch == 16
        for count in (3, 5, 10, 13, 40):
            assert close(pool.run(IMAGES[:count])["logits"], right[:count])
        assert prepared_batches(pool) == {3, 8, 12, 13, 16}  # 5 is padded up to 8, 10 to 12, 40 is 16, 16, 8


def opened_with(folder: Path, report: BenchReport, copy: Path) -> EnginePool:
    """A copy of the build folder with the result in it."""
    shutil.copytree(folder, copy)
    (copy / "bench.json").write_bytes(to_json(report))
    return EnginePool.open(copy)


def test_bench_measures_each_profile_where_it_begins_and_ends_and_is_tuned(
    profiles_build: Path, tmp_path: Path
) -> None:
    report = trtopt.bench(profiles_build, duration=0.05, warmup=0.01)
    assert [point.batch for point in report.points] == [1, 2, 4, 8, 12, 16]
    with opened_with(profiles_build, report, tmp_path / "copy") as pool:
        (engine,) = pool.catalogue.engines
        measured = [[batch for batch, _ in offer.latency_ms] for offer in engine.offers]
        assert measured == [[1, 2, 4], [8], [12, 16]]
    with pytest.raises(UsageError, match=r"batch=5: no engine here takes it"):
        trtopt.bench(profiles_build, batch=(5,), duration=0.05, warmup=0.01)


def test_profiles_that_were_not_measured_run_what_they_hold_best(
    profiles_build: Path, tmp_path: Path
) -> None:
    report = trtopt.bench(profiles_build, batch=(8,), duration=0.05, warmup=0.01)
    with opened_with(profiles_build, report, tmp_path / "copy") as pool:
        assert pool.largest_batch == 16
        for count, prepared in ((3, {3}), (7, {3, 8}), (13, {3, 8, 13}), (19, {3, 8, 13, 16})):
            pool.run(IMAGES[:count])
            assert prepared_batches(pool) == prepared


def test_measured_engines_are_chosen_by_their_latency(cpu_build: Path, tmp_path: Path) -> None:
    report = trtopt.bench(cpu_build, duration=0.1, warmup=0.02)
    for point, ms in zip(report.points, (1.0, 9.5), strict=True):  # as if batch 8 were slow
        samples = point.latency.samples
        samples.end_ms[:] = [start + ms for start in samples.start_ms]
    with EnginePool.open(cpu_build) as pool:
        pool.run(IMAGES[:8])
        assert prepared_batches(pool) == {8}
    with opened_with(cpu_build, report, tmp_path / "copy") as pool:
        pool.run(IMAGES[:8])
        assert prepared_batches(pool) == {1}


def test_a_result_of_other_engines_is_ignored_and_a_damaged_one_refused(
    cpu_build: Path, dynamic_build: Path, tmp_path: Path
) -> None:
    report = trtopt.bench(dynamic_build, duration=0.05, warmup=0.01)
    folder = tmp_path / "measured"
    with opened_with(cpu_build, report, folder) as pool:
        assert all(offer.latency_ms == () for engine in pool.catalogue.engines for offer in engine.offers)
    (folder / "bench.json").write_bytes(b"{")
    with pytest.raises(ArtifactError, match=r"bench.json: cannot be read as a result of trtopt bench"):
        EnginePool.open(folder)


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────


def test_an_engine_that_was_changed_is_not_loaded(cpu_build: Path, tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(cpu_build, folder)
    engine = folder / read_manifest(folder).engines[1].path
    engine.write_bytes(engine.read_bytes() + b"\0")
    with pytest.raises(ArtifactError, match=r"batch8.*: is not the file that the manifest vouches for"):
        EnginePool.open(folder)
    engine.unlink()
    with pytest.raises(ArtifactError, match=r"batch8.*: cannot be read"):
        EnginePool.open(folder)


WANTED = "give a folder that `trtopt build` made, or a file that `trtopt plan -o` wrote"


def refused(path: Path) -> tuple[str, str]:
    """Problem and remedy of what cannot be opened, without the path."""
    with pytest.raises(ArtifactError) as told:
        EnginePool.open(path)
    return told.value.problem.removeprefix(f"{path}: "), told.value.remedy


def test_what_is_neither_build_nor_plan_is_refused_with_what_would_do(tmp_path: Path) -> None:
    assert refused(tmp_path) == ("has no manifest.json", WANTED)
    assert refused(tmp_path / "nosuch") == ("no such file or folder", WANTED)
    (tmp_path / "odd.json").write_bytes(b"{")
    problem, remedy = refused(tmp_path / "odd.json")
    assert problem.startswith("cannot be read as a plan")
    assert remedy == WANTED


def test_a_model_is_refused_with_how_to_build_it(tmp_path: Path) -> None:
    model = Path(shutil.copy(DIGITS, tmp_path))
    problem, remedy = refused(model)
    assert problem.startswith("cannot be read as a plan")
    assert remedy == f"build it first: trtopt build {model} -o FOLDER; then give that folder"


def test_an_engine_alone_is_refused_with_the_folder_that_it_lies_in(cpu_build: Path) -> None:
    _, remedy = refused(cpu_build / read_manifest(cpu_build).engines[0].path)
    assert f"the build folder that it lies in: {cpu_build};" in remedy


def test_the_folder_of_a_sweep_is_refused_with_its_build_folders(cpu_build: Path, tmp_path: Path) -> None:
    shutil.copytree(cpu_build, tmp_path / "builds" / "one")
    problem, remedy = refused(tmp_path)
    assert problem == "is the folder of a sweep, which holds build folders"
    assert remedy.startswith(f"give one of these, {tmp_path / 'builds' / 'one'}, or a file that `trtopt plan")
    shutil.copytree(cpu_build, tmp_path / "builds" / "two")
    assert "one (or another of 2 there), or" in refused(tmp_path)[1]


def test_shapes_that_fit_no_engine_are_refused_with_those_of_every_input(tmp_path: Path) -> None:
    inputs = [onnx.helper.make_tensor_value_info(name, 1, ["n", 4]) for name in "ab"]
    total = onnx.helper.make_tensor_value_info("total", 1, ["n", 4])
    add = onnx.helper.make_node("Add", ["a", "b"], ["total"])
    opsets = [onnx.helper.make_opsetid("", 17)]
    graph = onnx.helper.make_graph([add], "sum", inputs, [total])
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "sum.onnx")
    trtopt.build(tmp_path / "sum.onnx", tmp_path / "sum", batch=(1,), backend="onnxruntime")
    with EnginePool.open(tmp_path / "sum") as pool:
        rows = {"a": np.zeros((1, 4), np.float32), "b": np.zeros((1, 5), np.float32)}
        with pytest.raises(
            DataError, match=r"a \[4\], b \[5\] fit no engine\n  → they take a \[4\], b \[4\]$"
        ):
            pool.run(rows)


@needs_no_gpu
def test_engines_for_a_gpu_are_refused_where_there_is_none(rtx_build: Path) -> None:
    with pytest.raises(NoGpuError):
        EnginePool.open(rtx_build)


def test_what_is_no_numpy_array_is_refused(pool: EnginePool) -> None:
    with pytest.raises(DataError, match="'images': list is not a NumPy array"):
        pool.run(IMAGES[:1].tolist())
