"""The example service, end to end: in the process, and as a server of its own under load."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
from command_line import HELDOUT, ROOT
from fastapi.testclient import TestClient

from trtopt.runtime import BatchPolicy, EnginePool

APP = ROOT / "docs" / "serving" / "app.py"
IMAGES = np.load(HELDOUT)["images"]
PATIENCE_S = 60.0


def make_client(folder: Path, policy: BatchPolicy | None = None) -> TestClient:
    spec = importlib.util.spec_from_file_location("serving_app", APP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # FastAPI looks annotations up there
    spec.loader.exec_module(module)
    return TestClient(module.make_app(str(folder), policy=policy))


def body(index: int) -> dict[str, object]:
    return {"images": IMAGES[index].tolist()}


@pytest.fixture(scope="module")
def right(cpu_build: Path) -> np.ndarray:
    with EnginePool.open(cpu_build) as pool:
        return pool.run(IMAGES)["logits"]


@pytest.fixture(scope="module")
def client(cpu_build: Path) -> Iterator[TestClient]:
    with make_client(cpu_build) as opened:
        yield opened


def test_a_sample_is_answered_with_its_outputs(client: TestClient, right: np.ndarray) -> None:
    answer = client.post("/infer", json=body(3))
    assert answer.status_code == 200
    assert np.allclose(answer.json()["logits"], right[3], atol=1e-4)
    assert client.get("/statistics").json()["batcher"]["answered"] >= 1
    assert client.get("/health").json() == {"workers": 2}


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"images": [[1.0, 2.0]]}, "samples of the shape images [1, 2] fit no engine"),
        ({"pictures": [1.0]}, "inputs ['pictures'] given, the engines take ['images']"),
        ({"images": [[1.0], [2.0, 3.0]]}, "not an array of float32"),
        ({"images": "a cat"}, "not an array of float32"),
        ({"images": None}, "samples of the shape images [] fit no engine"),
    ],
)
def test_a_sample_that_does_not_fit_is_a_client_error_with_a_remedy(
    client: TestClient, sent: dict[str, object], told: str
) -> None:
    answer = client.post("/infer", json=sent)
    assert answer.status_code == 422
    assert answer.json()["problem"].startswith(told)
    assert answer.json()["remedy"]


def test_a_deadline_that_cannot_be_kept_is_a_timeout(client: TestClient) -> None:
    answer = client.post("/infer", params={"deadline_ms": 0}, json=body(0))
    assert (answer.status_code, answer.json()["error"]) == (504, "DeadlineError")


def test_too_many_requests_are_told_to_come_again(cpu_build: Path) -> None:
    policy = BatchPolicy(max_batch=8, max_delay_ms=3_600_000.0, max_waiting=1)
    with make_client(cpu_build, policy) as client:
        client.app.state.batcher._batcher.submit(IMAGES[0])  # waits for company, and takes the only place
        answer = client.post("/infer", json=body(0))
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json()["error"] == "QueueFullError"


# ── a server of its own ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server(cpu_build: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A running server's address and process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(APP), str(cpu_build), str(port)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                httpx2.get(f"{address}/health")
                break
            except httpx2.TransportError:
                assert process.poll() is None
                assert time.monotonic() < until_s
                time.sleep(0.05)
        yield address, process
    finally:
        process.kill()
        process.communicate()


async def ask_for_all(address: str, requests: int, at_once: int, right: np.ndarray) -> Counter[str]:
    """What became of so many requests; those that are rejected come again until they are answered."""
    outcomes: Counter[str] = Counter()
    turns = iter(range(requests))

    async def ask(client: httpx2.AsyncClient) -> None:
        for turn in turns:
            index = turn % len(IMAGES)
            while True:
                answer = await client.post(f"{address}/infer", json=body(index))
                if answer.status_code != 503:
                    break
                outcomes["rejected"] += 1
                await asyncio.sleep(0.01)
            is_right = answer.status_code == 200 and np.allclose(
                answer.json()["logits"], right[index], atol=1e-4
            )
            outcomes["right" if is_right else f"wrong: {answer.status_code}"] += 1

    limits = httpx2.Limits(max_connections=at_once)
    async with httpx2.AsyncClient(timeout=PATIENCE_S, limits=limits) as client:
        await asyncio.gather(*(ask(client) for _ in range(at_once)))
    return outcomes


def test_a_server_under_load_answers_everybody_rightly_and_in_batches(
    server: tuple[str, subprocess.Popen[str]], right: np.ndarray
) -> None:
    address, process = server
    outcomes = asyncio.run(ask_for_all(address, 1500, 50, right))
    assert outcomes["right"] == 1500
    told = httpx2.get(f"{address}/statistics").json()["batcher"]
    assert told["answered"] == told["accepted"] == 1500
    assert any(int(size) > 1 for size in told["batch_sizes"])
    process.terminate()
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert printed == ""


def test_a_server_that_is_told_to_end_answers_what_it_has_accepted(
    server: tuple[str, subprocess.Popen[str]], right: np.ndarray
) -> None:
    address, process = server

    async def ask_and_end() -> list[httpx2.Response]:
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            asked = [asyncio.create_task(client.post(f"{address}/infer", json=body(n))) for n in range(20)]
            while (await client.get(f"{address}/statistics")).json()["batcher"]["accepted"] < 20:
                await asyncio.sleep(0)
            process.terminate()
            return await asyncio.gather(*asked)

    answers = asyncio.run(ask_and_end())
    assert [answer.status_code for answer in answers] == [200] * 20
    assert np.allclose([answer.json()["logits"] for answer in answers], right[:20], atol=1e-4)
    process.communicate(timeout=PATIENCE_S)
