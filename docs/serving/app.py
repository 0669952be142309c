"""A small HTTP service: every request is one sample, and those that come together share a batch.

pip install "trtopt[serve]"
python docs/serving/app.py BUILD_FOLDER [PORT]

POST /infer[?deadline_ms=…]  {"input name": nested lists, …}  →  {"output name": nested lists, …}
GET  /statistics             what became of the requests, and what the workers hold
GET  /health                 503 once no worker is left

Values are those of the model's own input: floats for an INT8 one, which are quantised with the manifest's
scale, and no padding of vectorised formats; pixels for a UINT8 one. Outputs are unpacked in the same way.

A body of more than TRTOPT_MAX_BODY_BYTES (16 MiB) is refused before all of it has come, and so is one that
takes longer than 30 seconds. Bodies that are being read hold at most sixteen times that many bytes in all.
An answer that holds NaN or infinity, which JSON has not, is an error. Large bodies and answers are read and
written in a thread.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from trtopt.data.packing import pack_array, unpack_array
from trtopt.errors import (
    ClosedError,
    DataError,
    QueueFullError,
    ServingError,
    TrtoptError,
    UsageError,
    WorkerError,
)
from trtopt.files.manifests import read_manifest
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import Manifest
from trtopt.records.tensors import VECTORS
from trtopt.serving import BatchPolicy, DynamicBatcher, EnginePool, serve_promptly


class UnreadBodyError(TrtoptError):
    """A body of which not all is read: what is left of it is not to be taken for a request."""


class BodyTooLargeError(UnreadBodyError):
    """More than the service reads."""


class BodyTooSlowError(UnreadBodyError):
    """It has not come in time."""


class TooManyBodiesError(UnreadBodyError):
    """More at a time than the service has memory for."""


class DeadlineError(ServingError):
    """No answer by the client's deadline."""


STATUS: dict[type[TrtoptError], int] = {
    BodyTooLargeError: 413,
    BodyTooSlowError: 408,
    TooManyBodiesError: 503,
    DataError: 422,
    UsageError: 422,  # a deadline that is no number
    QueueFullError: 503,
    ClosedError: 503,
    DeadlineError: 504,
    WorkerError: 500,
}

KINDS = {"b": "true and false", "i": "integers", "u": "integers", "f": "floats", "U": "strings"}
EXACT = {"b": "b", "i": "iu", "u": "iu"}
"""What kinds may be sent to engines that take this one; all others take integers and floats."""

MAX_BODY_BYTES = 16 << 20
BODIES_AT_ONCE, BODY_S = 16, 30.0
LINGER_S = 2.0
"""How long the rest of a refused body is thrown away, so that a client that sends still gets the answer."""
AT_ONCE_BYTES = 64 << 10
"""What is read or written sooner than it is handed to a thread."""

MAX_PORT = 65535
USAGE = "usage: python docs/serving/app.py BUILD_FOLDER [PORT]"


T = TypeVar("T")


def make_app(
    pool: EnginePool,
    *,
    policy: BatchPolicy | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    body_s: float = BODY_S,
    manifest: Manifest | None = None,
) -> FastAPI:
    """The service of a pool, which is closed when the service ends; a manifest tells of typed tensors."""
    packs = Packs(manifest) if manifest is not None else None
    bodies = Bodies(max_body_bytes, BODIES_AT_ONCE * max_body_bytes, body_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with pool, ThreadPoolExecutor(1, "json") as app.state.json_thread:
            app.state.pool, app.state.batcher = pool, DynamicBatcher(pool, policy)
            app.state.dtypes = {spec.name: numpy_dtype(spec.dtype) for spec in pool.catalogue.inputs}
            serve_promptly()
            try:
                yield
            finally:
                await asyncio.to_thread(app.state.batcher.close)

    app = FastAPI(title="trtopt", lifespan=lifespan)

    @app.post("/infer")
    async def infer(request: Request, deadline_ms: float | None = None) -> Response:
        if deadline_ms is not None and not deadline_ms >= 0:
            raise UsageError(
                f"deadline_ms={deadline_ms}: is no time from now", "give milliseconds, from 0 on"
            )
        state = request.app.state
        async with bodies.read(request) as body:
            sample = await aside(state.json_thread, len(body), read_sample, body, state.dtypes, packs)
        outputs = await within(deadline_ms, state.batcher.submit(sample, copy=False))
        outputs = packs.unpacked(outputs) if packs is not None else outputs
        nbytes = sum(values.nbytes for values in outputs.values())
        answer = await aside(state.json_thread, nbytes, as_json, outputs)
        return Response(answer, media_type="application/json")

    @app.get("/statistics")
    async def statistics(request: Request) -> Response:
        told = {"batcher": request.app.state.batcher.statistics(), "pool": request.app.state.pool.usage()}
        return Response(msgspec.json.encode(told), media_type="application/json")

    @app.get("/health")
    async def health(request: Request) -> JSONResponse:
        workers = request.app.state.pool.usage().workers
        return JSONResponse({"workers": workers}, 200 if workers else 503)

    @app.exception_handler(TrtoptError)
    async def refuse(_: Request, error: TrtoptError) -> JSONResponse:
        headers = {"Retry-After": "1"} if isinstance(error, (QueueFullError, TooManyBodiesError)) else {}
        if isinstance(error, UnreadBodyError):
            headers["Connection"] = "close"
        body = {"error": type(error).__name__, "problem": error.problem, "remedy": error.remedy}
        return JSONResponse(body, STATUS.get(type(error), 500), headers=headers)

    return app


async def within(deadline_ms: float | None, future: Future[T]) -> T:
    """The answer; a request that still waits at its deadline is cancelled, which frees its place.

    Raises:
        DeadlineError: there is none by then.
    """
    try:
        seconds = deadline_ms / 1e3 if deadline_ms is not None else None
        return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
    except asyncio.TimeoutError:
        raise DeadlineError(
            f"there was no answer within {deadline_ms:g} ms", "send less, or give it more time"
        ) from None


@dataclass
class Bodies:
    """The bodies that are being read: what each and all of them may hold, and how long one may take."""

    max_bytes: int
    max_bytes_of_all: int
    seconds: float
    held: int = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytearray]:
        """The whole body, which counts as held until it is left.

        Raises:
            BodyTooLargeError: it is larger, or says so.
            BodyTooSlowError: it has not come in time.
            TooManyBodiesError: others hold what there is for all.
            DataError: the client has left before its end.
        """
        body, stream = bytearray(), request.stream()
        try:
            self._check(int(request.headers.get("content-length", 0)))
            await self._fill(body, stream)
            yield body
        except (BodyTooLargeError, TooManyBodiesError):
            self.held -= len(body)
            body.clear()
            with suppress(ClientDisconnect), anyio.move_on_after(LINGER_S):
                async for _ in stream:
                    pass
            raise
        finally:
            self.held -= len(body)

    async def _fill(self, body: bytearray, stream: AsyncIterator[bytes]) -> None:
        try:
            with anyio.fail_after(self.seconds):
                async for piece in stream:
                    self._check(len(body) + len(piece))
                    if self.held + len(piece) > self.max_bytes_of_all:
                        raise TooManyBodiesError("too many bodies are being read", "send it again later")
                    self.held += len(piece)
                    body += piece
        except ClientDisconnect:
            raise DataError("the body has no end: the client has left", "send it again") from None
        except TimeoutError:
            problem = f"the body has not come within {self.seconds:g} s"
            raise BodyTooSlowError(problem, "send it faster, or less of it") from None

    def _check(self, nbytes: int) -> None:
        if nbytes > self.max_bytes:
            raise BodyTooLargeError(
                f"the body has more than {self.max_bytes:,} bytes",
                "send one sample a request, with few digits; TRTOPT_MAX_BODY_BYTES sets the limit",
            )


async def aside(thread: ThreadPoolExecutor, nbytes: int, work: Callable[..., T], *given: Any) -> T:
    """What `work` makes of so many bytes; of many in a thread, so that others are answered meanwhile."""
    if nbytes <= AT_ONCE_BYTES:
        return work(*given)
    return await asyncio.get_running_loop().run_in_executor(thread, work, *given)


class Packs:
    """What INT8 and vectorised tensors of a build take and give, for one sample at a time."""

    def __init__(self, manifest: Manifest) -> None:
        self._typed = {one.name: one for one in manifest.io if one.scale is not None or one.layout in VECTORS}
        self._specs = {spec.name: spec for spec in (*manifest.onnx.inputs, *manifest.onnx.outputs)}

    def dtype(self, name: str, taken: np.dtype[Any] | None) -> np.dtype[Any] | None:
        """The type of the values that are sent for an input of type `taken`."""
        is_scaled = name in self._typed and self._typed[name].scale is not None
        return np.dtype(np.float32) if is_scaled else taken

    def packed(self, sample: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A sample as the engines take it.

        Raises:
            DataError: another shape than the input's, or values beyond its scale.
        """
        return {
            name: pack_array(self._specs[name], array[None], self._typed[name])[0]
            if name in self._typed
            else array
            for name, array in sample.items()
        }

    def unpacked(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """An answer of the engines in the model's own values."""
        return {
            name: unpack_array(self._specs[name], array[None], self._typed[name])[0]
            if name in self._typed
            else array
            for name, array in outputs.items()
        }


def read_sample(
    body: bytes | bytearray, dtypes: Mapping[str, np.dtype[Any]], packs: Packs | None = None
) -> dict[str, np.ndarray]:
    """The arrays of a request.

    Raises:
        DataError: no JSON object, or values that do not fit.
    """
    try:
        inputs = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"the body is no JSON object: {error}"
        if b"NaN" in body or b"Infinity" in body or "out of range" in str(error):
            held = ", ".join(dict.fromkeys(map(str, dtypes.values())))
            problem = f"the body: a number is not finite, or beyond what {held} holds ({error})"
        raise DataError(problem, 'send {"input name": nested lists of finite numbers, …}') from None
    if packs is None:
        return {name: as_array(name, values, dtypes.get(name)) for name, values in inputs.items()}
    given = {name: packs.dtype(name, dtypes.get(name)) for name in inputs}
    return packs.packed({name: as_array(name, values, given[name]) for name, values in inputs.items()})


def as_json(outputs: Mapping[str, np.ndarray]) -> bytes:
    """The answer to a request.

    Raises:
        ServingError: an output holds what JSON has no number for.
    """
    for name, values in outputs.items():
        if lost := values.size - int(np.isfinite(values).sum()):
            raise ServingError(
                f"output {name!r}: {lost:,} of {values.size:,} values are NaN or infinite: JSON has none",
                "see with `trtopt check` whether the engine computes what the model does for this input",
            )
    return msgspec.json.encode({name: values.tolist() for name, values in outputs.items()})


def as_array(name: str, values: object, dtype: np.dtype[Any] | None) -> np.ndarray:
    """Nested lists in the type that the engines take; a name that they do not know is told later.

    Raises:
        DataError: not numbers of that type: nothing is rounded to an integer, and nothing becomes infinite.
    """
    try:
        raw = np.asarray(values)
    except ValueError as error:
        raise DataError(
            f"input {name!r}: is no array: {error}", "send nested lists of equal lengths"
        ) from None
    if dtype is None:
        return raw
    is_exact = dtype.kind in EXACT
    if raw.size and raw.dtype.kind not in EXACT.get(dtype.kind, "iuf"):  # an empty list is of no kind
        raise DataError(
            f"input {name!r}: holds {KINDS.get(raw.dtype.kind, 'other things than numbers')}, "
            f"the engines take {dtype}",
            f"send nested lists of {KINDS[dtype.kind] if is_exact else 'numbers'}",
        )
    with np.errstate(over="ignore"):  # told below
        array = raw.astype(dtype)
    is_kept = array == raw if is_exact else np.isfinite(array)
    if not is_kept.all():
        raise DataError(
            f"input {name!r}: {raw[~is_kept][0]} is not finite, or beyond what {dtype} holds",
            f"send finite numbers within the range of {dtype}",
        )
    return array


def limit_in(environment: Mapping[str, str]) -> int:
    """The most bytes of a body.

    Raises:
        UsageError: TRTOPT_MAX_BODY_BYTES is no number of bytes.
    """
    told = environment.get("TRTOPT_MAX_BODY_BYTES", str(MAX_BODY_BYTES))
    if not told.isdecimal() or not int(told):
        raise UsageError(f"TRTOPT_MAX_BODY_BYTES={told}: is no number of bytes", "set it to a whole number")
    return int(told)


def main(arguments: Sequence[str]) -> int:
    """Serve until told to end; the exit code."""
    port = arguments[1] if len(arguments) > 1 else "8000"
    is_known = len(arguments) in (1, 2) and not arguments[0].startswith("-")
    if not is_known or not port.isdecimal() or int(port) > MAX_PORT:
        print(USAGE, file=sys.stderr)
        return UsageError.exit_code
    try:
        max_body_bytes = limit_in(os.environ)
        pool, folder = EnginePool.open(arguments[0], workers=2), Path(arguments[0])
        manifest = read_manifest(folder) if folder.is_dir() else None
        app = make_app(pool, max_body_bytes=max_body_bytes, manifest=manifest)
    except TrtoptError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    # Clients keep idle connections for some seconds, too: the server must not be the first to let go.
    uvicorn.run(app, port=int(port), log_level="warning", timeout_keep_alive=75)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
