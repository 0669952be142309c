"""The batcher on real engines, under threads, cancellations and overload: nobody is lost or mixed up."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtopt
from tests.support.command_line import DIGITS, HELDOUT, ROOT
from trtopt.errors import DataError, QueueFullError
from trtopt.serving import BatchPolicy, DynamicBatcher, EnginePool

IMAGES = np.load(HELDOUT)["images"]
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePool]:
    folder = tmp_path_factory.mktemp("serving") / "digits"
    trtopt.build(DIGITS, folder, batch=(1, 8, 32), backend="onnxruntime")
    with EnginePool.open(folder, workers=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def right(pool: EnginePool) -> np.ndarray:
    return pool.run(IMAGES)["logits"]


def is_right(outputs: dict[str, np.ndarray], right: np.ndarray, index: int) -> bool:
    return bool(np.allclose(outputs["logits"], right[index], atol=1e-4))


def submit_patiently(batcher: DynamicBatcher, index: int) -> Future[dict[str, np.ndarray]]:
    while True:
        try:
            return batcher.submit(IMAGES[index])
        except QueueFullError:
            time.sleep(0.001)


@pytest.mark.long
def test_ten_thousand_random_cancellations_lose_and_mix_up_no_one(
    pool: EnginePool, right: np.ndarray
) -> None:
    wanted = 10_000
    cancelled = Counter[str]()
    ended: Counter[int] = Counter()
    guard = threading.Lock()

    def ended_once(future: Future[dict[str, np.ndarray]]) -> None:
        with guard:
            ended[id(future)] += 1

    def send(seed: int) -> list[tuple[int, Future[dict[str, np.ndarray]]]]:
        choose, mine = random.Random(seed), []
        while cancelled["done"] < wanted:
            index = choose.randrange(len(IMAGES))
            future = submit_patiently(batcher, index)
            future.add_done_callback(ended_once)
            mine.append((index, future))
            if choose.random() < 0.7:
                _, victim = mine[-1 - min(int(choose.expovariate(0.2)), len(mine) - 1)]
                if not victim.done() and victim.cancel():
                    with guard:
                        cancelled["done"] += 1
        return mine

    policy = BatchPolicy(max_batch=32, max_delay_ms=0.5, max_waiting=256)
    with DynamicBatcher(pool, policy) as batcher, ThreadPoolExecutor(3) as threads:
        sent = [one for mine in threads.map(send, range(3)) for one in mine]
    answers = [(index, future) for index, future in sent if not future.cancelled()]
    assert all(is_right(future.result(0), right, index) for index, future in answers)
    told = batcher.statistics()
    assert told.accepted == len(sent)
    assert told.cancelled == len(sent) - len(answers) >= wanted
    assert (told.answered, told.failed) == (len(answers), 0)
    assert (told.waiting, told.running) == (0, 0)
    assert len(ended) == len(sent)
    assert set(ended.values()) == {1}


def test_a_buffer_that_is_written_to_again_changes_no_request(pool: EnginePool, right: np.ndarray) -> None:
    buffer = np.empty_like(IMAGES[0])
    with DynamicBatcher(pool, BatchPolicy(max_batch=4, max_delay_ms=3_600_000.0)) as batcher:
        futures = []
        for image in IMAGES[:4]:
            buffer[...] = image
            futures.append(batcher.submit(buffer))
        assert all(is_right(future.result(PATIENCE_S), right, index) for index, future in enumerate(futures))


def test_who_requests_no_copy_gets_none(pool: EnginePool, right: np.ndarray) -> None:
    buffer = IMAGES[0].copy()
    with DynamicBatcher(pool, BatchPolicy(max_batch=2, max_delay_ms=3_600_000.0)) as batcher:
        first = batcher.submit(buffer, copy=False)  # waits for company
        buffer[...] = IMAGES[1]
        batcher.submit(buffer, copy=False)
        assert is_right(first.result(PATIENCE_S), right, 1)


def test_under_overload_no_more_requests_are_held_than_may_be(pool: EnginePool) -> None:
    policy = BatchPolicy(max_batch=32, max_delay_ms=0.5, max_waiting=64)
    alive: weakref.WeakSet[Future[dict[str, np.ndarray]]] = weakref.WeakSet()
    most, rejected = 0, 0
    with DynamicBatcher(pool, policy) as batcher:
        for sent in range(20_000):
            try:
                alive.add(batcher.submit(IMAGES[sent % 540]))
            except QueueFullError:
                rejected += 1
            if sent % 100 == 0:
                most = max(most, len(alive))
    gc.collect()
    assert rejected == batcher.statistics().rejected > 0
    assert most <= policy.max_waiting + 2 * policy.max_batch  # two workers compute
    assert len(alive) == 0


@pytest.mark.long
def test_the_overload_script_accounts_for_every_request(tmp_path: Path, cpu_build: Path) -> None:
    script = ROOT / "benchmarks" / "runtime" / "overload.py"
    done = subprocess.run(
        [sys.executable, str(script), str(cpu_build), str(HELDOUT), "--seconds", "3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    counted, told = result["counted"], result["batcher"]
    for name in ("accepted", "rejected", "invalid", "answered", "cancelled"):
        assert counted.get(name, 0) == told[name]
    assert counted["rejected"] > 0
    assert counted["answered"] + counted["cancelled"] == counted["accepted"]
    assert (told["failed"], told["waiting"], told["running"]) == (0, 0, 0)


# ── asyncio ─────────────────────────────────────────────────────────────────────────────────────────────


def test_answers_can_be_awaited_and_a_cancelled_task_takes_its_request_back(
    pool: EnginePool, right: np.ndarray
) -> None:
    async def ask(batcher: DynamicBatcher) -> list[dict[str, np.ndarray]]:
        task = asyncio.ensure_future(asyncio.wrap_future(batcher.submit(IMAGES[0])))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while batcher.statistics().cancelled == 0:  # the loop tells the request after the task
            await asyncio.sleep(0)
        return await asyncio.gather(*(asyncio.wrap_future(batcher.submit(image)) for image in IMAGES[:96]))

    with DynamicBatcher(pool, BatchPolicy(max_batch=8, max_delay_ms=3_600_000.0)) as batcher:
        answers = asyncio.run(asyncio.wait_for(ask(batcher), PATIENCE_S))
    assert all(is_right(outputs, right, index) for index, outputs in enumerate(answers))


# ── requests that are not alike ─────────────────────────────────────────────────────────────────────────


def test_samples_of_unlike_shapes_never_share_a_batch(sequence_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sequence"
    trtopt.build(
        sequence_model,
        folder,
        batch=(1, 4, 8),
        dynamic=True,
        shapes={"x": "Nx1x8,Nx16x8,Nx32x8"},
        backend="onnxruntime",
    )
    choose = np.random.default_rng(0)
    samples = [
        choose.standard_normal((int(length), 8)).astype(np.float32) for length in choose.integers(1, 33, 200)
    ]
    with EnginePool.open(folder) as pool, DynamicBatcher(pool) as batcher:
        futures = [batcher.submit(sample) for sample in samples]
        for sample, future in zip(samples, futures, strict=True):
            assert np.array_equal(future.result(PATIENCE_S)["y"], np.maximum(sample, 0))
        with pytest.raises(DataError, match=r"x \[33, 8\] fit no engine\n.*take x \[1, 8\] to \[32, 8\]"):
            batcher.submit(np.zeros((33, 8), np.float32))


@pytest.fixture
def lookup_model(tmp_path: Path) -> Path:
    """Rows of a table of 10 by their index, which ONNX Runtime refuses beyond 9."""
    table = onnx.numpy_helper.from_array(np.arange(20, dtype=np.float32).reshape(10, 2), "table")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gather", ["table", "x"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT64, ["batch"])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 2])],
        [table],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    path = tmp_path / "lookup.onnx"
    onnx.save(model, str(path))
    return path


def test_values_that_the_model_refuses_sink_no_one_elses_request(lookup_model: Path, tmp_path: Path) -> None:
    trtopt.build(lookup_model, tmp_path / "lookup", batch=(8,), backend="onnxruntime", rewrite="none")
    policy = BatchPolicy(max_batch=8, max_delay_ms=3_600_000.0)
    with EnginePool.open(tmp_path / "lookup") as pool, DynamicBatcher(pool, policy) as batcher:
        for _ in range(2):  # the worker is none the worse for it
            futures = [batcher.submit(np.int64(index)) for index in (0, 1, 99, 3, 4, 5, 6, 7)]
            wait(futures, PATIENCE_S)
            with pytest.raises(DataError, match=r"cannot run the model on this input: .*out of"):
                futures[2].result(0)
            for index in (0, 1, 3, 4, 5, 6, 7):
                assert futures[index].result(0)["y"].tolist() == [2 * index, 2 * index + 1]
        told = batcher.statistics()
        assert (told.answered, told.failed) == (14, 2)
        assert pool.usage().replaced == 0


def test_cancelled_and_answered_futures_are_what_the_library_expects(pool: EnginePool) -> None:
    with DynamicBatcher(pool, BatchPolicy(max_batch=32, max_delay_ms=20.0)) as batcher:
        futures = [batcher.submit(IMAGES[index]) for index in range(20)]
        futures[3].cancel()
        done, pending = wait(futures, PATIENCE_S)
        assert not pending
        assert len(done) == 20
        with pytest.raises(CancelledError):
            futures[3].result()
