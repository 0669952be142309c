"""The runtime on a real GPU: graphs, arrays in device memory, bounded memory, batches."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import trtopt
from tests.support.gpu_digits import DIGITS, IMAGES, SOURCES, close
from trtopt.device.api import DeviceBuffer
from trtopt.serving import BatchPolicy, DynamicBatcher, EnginePool, prepared_engine as prepared

PATIENCE_S = 60.0


@pytest.fixture
def pool(built: Path, binding: str) -> Iterator[EnginePool]:
    with EnginePool.open(built, workers=2) as opened:
        yield opened


class OnGpu:
    """Rows in device memory that the pool's own device handed out."""

    def __init__(self, pool: EnginePool, images: np.ndarray, offset: int = 0) -> None:
        device = pool._device
        host, stream = device.pinned_buffer(images.nbytes + offset), device.stream()
        host.array[offset:] = np.ascontiguousarray(images).reshape(-1).view(np.uint8)
        self.memory: DeviceBuffer = device.device_buffer(images.nbytes + offset)
        device.copy_to_device(self.memory, host, stream)
        self.__cuda_array_interface__ = {
            "shape": images.shape,
            "typestr": images.dtype.str,
            "data": (self.memory.address + offset, False),
            "version": 3,
            "stream": stream.handle,  # the copy may still be under way
        }
        self._made = (stream, self.memory, host)

    def close(self) -> None:
        for made in self._made:
            made.close()


@pytest.mark.parametrize("graphs", [True, False])
def test_any_number_of_rows_is_answered_row_by_row(
    built: Path, binding: str, right: np.ndarray, graphs: bool
) -> None:
    with EnginePool.open(built, graphs=graphs) as pool:
        for _ in range(3):  # plain, captured, replayed
            for count in (1, 2, 8, 9, 30):
                start = 7 * count
                outputs = pool.run(IMAGES[start : start + count])
                assert close(outputs["logits"], right[start : start + count])
        usage = pool.usage()
        assert usage.graph_refused is None
        assert usage.graphs == (2 if graphs else 0)  # batches 1 and 8
        assert usage.prepared == 2


@pytest.mark.parametrize("count", [1, 5, 8, 20])
@pytest.mark.parametrize("offset", [0, 16])  # 16 bytes: not where an engine may read
def test_rows_in_device_memory_are_answered(
    pool: EnginePool, right: np.ndarray, count: int, offset: int
) -> None:
    rows = OnGpu(pool, IMAGES[:count], offset)
    for _ in range(3):
        assert close(pool.run(rows)["logits"], right[:count])
        assert close(pool.run(IMAGES[20 : 20 + count])["logits"], right[20 : 20 + count])
    rows.close()


class Locked:
    """Images in page-locked memory, as torch shows its own."""

    def __init__(self, pool: EnginePool, images: np.ndarray) -> None:
        self.memory = pool._device.pinned_buffer(images.nbytes)
        self.array = self.memory.array.view(images.dtype).reshape(images.shape)
        self.array[...] = images

    def __dlpack_device__(self) -> tuple[int, int]:
        return 3, 0

    def __dlpack__(self, **_: object) -> object:
        return self.array.__dlpack__()


@pytest.mark.parametrize("count", [1, 5, 8, 20])
@pytest.mark.parametrize("copied_from", [0, prepared.LOCKED_BYTES])
def test_rows_in_page_locked_memory_are_answered(
    pool: EnginePool, right: np.ndarray, count: int, copied_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "LOCKED_BYTES", copied_from)
    rows = Locked(pool, IMAGES[:count])
    for _ in range(3):
        assert close(pool.run(rows)["logits"], right[:count])
        assert close(pool.run(IMAGES[20 : 20 + count])["logits"], right[20 : 20 + count])
    rows.memory.close()


def test_rows_of_the_host_and_of_the_device_meet_in_one_batch(
    pool: EnginePool, right: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "LOCKED_BYTES", 0)
    rows, locked = OnGpu(pool, IMAGES[3:6]), Locked(pool, IMAGES[2:3])
    parts = [pool.catalogue.part(one) for one in (IMAGES[:2], locked, rows, IMAGES[6:7])]
    for _ in range(3):  # plain, captured, replayed: beside a graph that copies all inputs from the host
        answers = [answer["logits"] for answer in pool.run_parts(parts)]
        assert close(np.concatenate(answers), right[:7])
        assert close(pool.run(IMAGES[:7])["logits"], right[:7])
    rows.close()
    locked.memory.close()


def test_arrays_of_pycuda_are_read_where_they_lie(
    built: Path, right: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTOPT_CUDA", "pycuda")
    with EnginePool.open(built) as pool:
        gpuarray = pytest.importorskip("pycuda.gpuarray")
        for count in (8, 3):
            array = gpuarray.to_gpu(np.ascontiguousarray(IMAGES[:count]))
            assert close(pool.run(array)["logits"], right[:count])
            del array  # before its context goes


def test_tensors_of_torch_are_read_where_they_lie(pool: EnginePool, right: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    doubled = torch.from_numpy(IMAGES[:8]).cuda() * 2
    for _ in range(20):  # the division is still under way when the pool is asked
        assert close(pool.run(doubled / 2)["logits"], right[:8])


def test_memory_stays_within_its_bound(built: Path, binding: str, right: np.ndarray) -> None:
    with EnginePool.open(built, bound_bytes=1) as pool:
        for _ in range(3):
            for count in (1, 8):
                assert close(pool.run(IMAGES[:count])["logits"], right[:count])
                assert pool.usage().prepared == 1
        assert pool.usage().evicted == 5


def test_two_workers_share_a_dynamic_engine(
    tmp_path_factory: pytest.TempPathFactory, binding: str, right: np.ndarray
) -> None:
    folder = tmp_path_factory.mktemp("gpu") / "dynamic"
    trtopt.build(DIGITS, folder, batch=(1, 4, 16), dynamic=True, backend="tensorrt", tactic_sources=SOURCES)

    def ask(number: int) -> bool:
        count = 1 + number % 20
        return close(pool.run(IMAGES[number : number + count])["logits"], right[number : number + count])

    with EnginePool.open(folder, workers=2) as pool, ThreadPoolExecutor(4) as threads:
        assert all(threads.map(ask, range(400)))
        assert pool.usage().replaced == 0


def test_many_requests_share_batches_and_each_has_its_own_answer(pool: EnginePool, right: np.ndarray) -> None:
    policy = BatchPolicy(max_batch=8, max_delay_ms=1.0, max_waiting=10_000)
    with DynamicBatcher(pool, policy) as batcher:
        futures = [batcher.submit(IMAGES[number % 540]) for number in range(5000)]
        for number, future in enumerate(futures):
            assert close(future.result(PATIENCE_S)["logits"], right[number % 540])
        told = batcher.statistics()
    assert (told.answered, told.failed) == (5000, 0)
    assert max(told.batch_sizes, key=lambda size: told.batch_sizes[size]) == 8
    assert pool.usage().graphs > 0
