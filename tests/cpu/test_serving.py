"""The example service, end to end: in the process, and as a server of its own under load."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import numpy as np
import onnx
import pytest
from fastapi.testclient import TestClient

import trtopt
from tests.rewrite_graphs import model
from tests.support.command_line import HELDOUT, ROOT
from tests.support.long import few
from trtopt.errors import DataError, ServingError, UsageError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.serving import BatchPolicy, EnginePool

APP = ROOT / "docs" / "serving" / "app.py"
IMAGES = np.load(HELDOUT)["images"]
PATIENCE_S = 60.0


def load_app() -> ModuleType:
    spec = importlib.util.spec_from_file_location("serving_app", APP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # FastAPI looks annotations up there
    spec.loader.exec_module(module)
    return module


def make_client(folder: Path, policy: BatchPolicy | None = None) -> TestClient:
    return TestClient(load_app().make_app(EnginePool.open(folder, workers=2), policy=policy))


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


def test_an_output_whose_size_depends_on_the_data_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "nonzero.onnx"
    onnx.save(model("g (float[N,4] x) => (int64[2,M] y) {y = NonZero(x)}"), file)
    trtopt.build(file, tmp_path / "engines", batch=1, backend="onnxruntime")
    with make_client(tmp_path / "engines") as opened:
        answer = opened.post("/infer", json={"x": [1, 0, 2, 0]})
    assert (answer.status_code, answer.json()["error"]) == (422, "UsageError")
    assert answer.json()["problem"].startswith("output 'y' has a size that depends on the data")


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ({"images": [[1.0, 2.0]]}, "samples of the shape images [1, 2] fit no engine"),
        ({"pictures": [1.0]}, "inputs ['pictures'] given, the engines take ['images']"),
        ({"images": []}, "samples of the shape images [0] fit no engine"),
        ({"images": [[1.0], [2.0, 3.0]]}, "input 'images': is no array: "),
        ({"images": "a cat"}, "input 'images': holds strings, the engines take float32"),
        ({"images": ["1"]}, "input 'images': holds strings, the engines take float32"),
        ({"images": [True]}, "input 'images': holds true and false, the engines take float32"),
        ({"images": None}, "input 'images': holds other things than numbers, the engines take float32"),
        ({"images": [1.0, None]}, "input 'images': holds other things than numbers"),
        ({"images": [1.0, 1e39]}, "input 'images': 1e+39 is not finite, or beyond what float32 holds"),
    ],
)
def test_a_sample_that_does_not_fit_is_a_client_error_with_a_remedy(
    client: TestClient, sent: dict[str, object], told: str
) -> None:
    answer = client.post("/infer", json=sent)
    assert answer.status_code == 422
    assert answer.json()["problem"].startswith(told)
    assert answer.json()["remedy"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_a_number_that_is_not_finite_is_a_client_error(client: TestClient, value: str) -> None:
    sent = json.dumps(body(0)).replace("0.0", value, 1)
    answer = client.post("/infer", content=sent, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert "is not finite, or beyond what float32 holds" in answer.json()["problem"]


@pytest.mark.parametrize("sent", ["", "[1]", "{", '{"images": [1}', "[" * 100_000, '"\\ud800"', b"\xff"])
def test_a_body_that_is_no_json_object_is_a_client_error(client: TestClient, sent: str | bytes) -> None:
    answer = client.post("/infer", content=sent)
    assert (answer.status_code, answer.json()["error"]) == (422, "DataError")
    assert answer.json()["problem"].startswith("the body is no JSON object: ")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_answer_that_json_cannot_hold_is_an_error_and_not_null(value: float) -> None:
    app = load_app()
    assert app.as_json({"y": np.float32([1, 2])}) == b'{"y":[1.0,2.0]}'
    with pytest.raises(ServingError, match=r"^output 'y': 1 of 2 values are NaN or infinite"):
        app.as_json({"y": np.float32([1, value])})
    assert app.STATUS.get(ServingError, 500) == 500


def test_health_is_answered_while_a_large_body_is_read(
    cpu_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = load_app()
    begun, healthy = threading.Event(), threading.Event()
    read_sample = app.read_sample

    def read_once_healthy(*given: Any) -> Any:
        begun.set()
        assert healthy.wait(PATIENCE_S)
        return read_sample(*given)

    monkeypatch.setattr(app, "read_sample", read_once_healthy)
    large = json.dumps(body(0)).encode() + b" " * app.AT_ONCE_BYTES
    with (
        TestClient(app.make_app(EnginePool.open(cpu_build))) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        sent = threads.submit(client.post, "/infer", content=large)
        assert begun.wait(PATIENCE_S)
        assert client.get("/health").status_code == 200
        assert client.get("/statistics").status_code == 200
        assert not sent.done()
        healthy.set()
        assert sent.result(PATIENCE_S).status_code == 200


def test_a_body_as_large_as_the_limit_is_read_and_no_larger_one(cpu_build: Path) -> None:
    sent = json.dumps(body(0)).encode()
    for limit, status in ((len(sent), 200), (len(sent) - 1, 413)):
        app = load_app().make_app(EnginePool.open(cpu_build), max_body_bytes=limit)
        with TestClient(app) as client:
            for content in (sent, iter([sent[:10], sent[10:]])):  # with its length told, and without
                answer = client.post("/infer", content=content)
                assert answer.status_code == status
    assert answer.json()["problem"] == f"the body has more than {limit:,} bytes"
    assert "TRTOPT_MAX_BODY_BYTES" in answer.json()["remedy"]


def test_a_body_that_does_not_come_is_refused_in_time_and_all_bodies_together_are_bounded(
    cpu_build: Path,
) -> None:
    app = load_app()
    half = json.dumps(body(0)).encode()[:-1]

    async def piece() -> AsyncIterator[bytes]:
        yield half
        await asyncio.sleep(PATIENCE_S)

    async def statuses() -> Counter[int]:
        service = app.make_app(EnginePool.open(cpu_build), max_body_bytes=len(half), body_s=1.0)
        async with service.router.lifespan_context(service):
            transport = httpx2.ASGITransport(service)
            async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
                many = (client.post("/infer", content=piece()) for _ in range(app.BODIES_AT_ONCE + 1))
                answers = await asyncio.gather(*many)
                whole = await client.post("/infer", json={"images": []})
        assert {answer.headers["connection"] for answer in answers} == {"close"}
        return Counter(answer.status_code for answer in (*answers, whole))

    assert asyncio.run(statuses()) == {408: app.BODIES_AT_ONCE, 503: 1, 422: 1}


def test_whole_numbers_are_taken_for_floats(client: TestClient) -> None:
    assert client.post("/infer", json={"images": [[[1] * 8] * 8]}).status_code == 200


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("float32", [1, 2.5, -0.0]),
        ("float16", [[65504]]),
        ("bfloat16", [1e38]),
        ("int64", [2**63 - 1, -(2**63)]),
        ("int32", [-5]),
        ("uint8", [[0, 255]]),
        ("uint64", [2**64 - 1]),
        ("bool", [True, False]),
        ("int64", []),
    ],
)
def test_values_that_fit_arrive_as_they_were_sent(dtype: str, values: list[Any]) -> None:
    array = load_app().as_array("x", values, numpy_dtype(dtype))
    assert array.dtype == numpy_dtype(dtype)
    assert np.allclose(array.astype(np.float64), np.asarray(values, np.float64), rtol=1e-2)


@pytest.mark.parametrize(
    ("dtype", "values", "told"),
    [
        ("int64", [1.7] * 32, "holds floats, the engines take int64\n  → send nested lists of integers"),
        ("int64", ["1"] * 32, "holds strings"),
        ("int64", [True] * 32, "holds true and false"),
        ("int64", [2**63], "9223372036854775808 is not finite, or beyond what int64 holds"),
        ("int64", [2**70], "holds other things than numbers"),
        ("int32", [1, 2**31], "2147483648 is not finite, or beyond what int32 holds"),
        ("uint8", [256], "256 is"),
        ("uint8", [-1], "-1 is"),
        ("bool", [0, 1], "holds integers, the engines take bool\n  → send nested lists of true and false"),
        ("float16", [65536], "65536 is"),
        ("bfloat16", [1e39], "1e+39 is"),
        ("float32", [float("nan")], "nan is"),
        ("float32", 1e39, "1e+39 is"),
        ("float32", {"a": 1}, "holds other things than numbers"),
    ],
)
def test_values_that_would_become_others_are_refused(dtype: str, values: object, told: str) -> None:
    with pytest.raises(DataError) as refused:
        load_app().as_array("x", values, numpy_dtype(dtype))
    assert str(refused.value).startswith(f"input 'x': {told}")


def test_a_deadline_that_is_no_number_is_a_client_error(client: TestClient) -> None:
    answer = client.post("/infer", params={"deadline_ms": "nan"}, json=body(0))
    assert (answer.status_code, answer.json()["error"]) == (422, "UsageError")
    assert client.post("/infer", params={"deadline_ms": "soon"}, json=body(0)).status_code == 422


def test_a_deadline_that_cannot_be_kept_is_a_timeout(client: TestClient) -> None:
    answer = client.post("/infer", params={"deadline_ms": 0}, json=body(0))
    assert (answer.status_code, answer.json()["error"]) == (504, "DeadlineError")


def test_too_many_requests_are_told_to_come_again(cpu_build: Path) -> None:
    policy = BatchPolicy(max_batch=8, max_delay_ms=3_600_000.0, max_waiting=1)
    with make_client(cpu_build, policy) as client:
        client.app.state.batcher.submit(IMAGES[0])  # waits for company, and takes the only place
        answer = client.post("/infer", json=body(0))
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json()["error"] == "QueueFullError"


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────


def run_app(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(APP), *arguments],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    few("digits http", of=["", "digits 8000 more", "digits http", "digits 65536", "--help"]),
)
def test_arguments_that_are_none_are_told_how_it_is_used(arguments: str) -> None:
    done = run_app(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: python docs/serving/app.py BUILD_FOLDER [PORT]\n"


@pytest.mark.parametrize("limit", ["16M", "0", ""])
def test_a_limit_that_is_none_is_reported(limit: str) -> None:
    with pytest.raises(UsageError, match=f"^TRTOPT_MAX_BODY_BYTES={limit}: is no number of bytes"):
        load_app().limit_in({"TRTOPT_MAX_BODY_BYTES": limit})


def test_a_folder_that_is_none_is_reported_in_two_lines(tmp_path: Path) -> None:
    done = run_app(str(tmp_path / "nosuch"))
    assert (done.returncode, done.stdout) == (2, "")
    first, second = done.stderr.splitlines()
    assert first == f"{tmp_path / 'nosuch'}: no such file or folder"
    assert second.startswith("  → give a folder that `trtopt build` made")


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
    outcomes = asyncio.run(ask_for_all(address, 400, 50, right))
    assert outcomes["right"] == 400
    told = httpx2.get(f"{address}/statistics").json()["batcher"]
    assert told["answered"] == told["accepted"] == 400
    assert any(int(size) > 1 for size in told["batch_sizes"])
    process.terminate()
    printed, _ = process.communicate(timeout=PATIENCE_S)
    assert printed == ""


def test_a_body_without_an_end_is_refused_while_it_comes(
    server: tuple[str, subprocess.Popen[str]], right: np.ndarray
) -> None:
    address, _ = server
    answer = httpx2.post(f"{address}/infer", content=itertools.repeat(b" " * 65536), timeout=PATIENCE_S)
    assert answer.status_code == 413
    assert np.allclose(httpx2.post(f"{address}/infer", json=body(0)).json()["logits"], right[0], atol=1e-4)


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


def test_floats_for_an_int8_input_are_packed_by_the_manifest(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    net = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 3, 8, 8] x) => (float[N, 8, 6, 6] y) { y = Conv (x, w) }""")
    weight = random.standard_normal((8, 3, 3, 3)).astype(np.float32)
    net.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(net, tmp_path / "net.onnx")
    images = random.standard_normal((16, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "images.npz", x=images)
    manifest = trtopt.build(
        tmp_path / "net.onnx",
        tmp_path / "int8",
        batch=4,
        precision="int8",
        data=tmp_path / "images.npz",
        io={"x": "int8"},
        verdict=False,
        backend="onnxruntime",
    )
    pool, image = EnginePool.open(tmp_path / "int8"), np.clip(images[0], -2, 2)
    with TestClient(load_app().make_app(pool, manifest=manifest)) as client:
        answer = client.post("/infer", json={"x": image.tolist()})
        beyond = client.post("/infer", json={"x": np.full_like(image, 1e6).tolist()})
    with EnginePool.open(tmp_path / "int8") as again:
        wanted = again.run({"x": trtopt.pack(manifest, image[None])})["y"][0]
    np.testing.assert_allclose(answer.json()["y"], wanted, rtol=1e-4, atol=1e-4)
    assert beyond.status_code == 422
    assert "is outside INT8 at scale" in beyond.json()["problem"]
