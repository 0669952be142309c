"""A small HTTP service: every request is one sample, and those that come together share a batch.

pip install "trtopt[serve]"
python docs/serving/app.py BUILD_FOLDER [PORT]

POST /infer[?deadline_ms=…]  {"input name": nested lists, …}  →  {"output name": nested lists, …}
GET  /statistics             what became of the requests, and what the workers hold
GET  /health                 503 once no worker is left
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
import numpy as np
import uvicorn
from fastapi import Body, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from trtopt.dtypes import numpy_dtype
from trtopt.errors import (
    ClosedError,
    DataError,
    DeadlineError,
    QueueFullError,
    TrtoptError,
    UsageError,
    WorkerError,
)
from trtopt.runtime import AsyncBatcher, BatchPolicy, DynamicBatcher, EnginePool, serve_promptly

STATUS: dict[type[TrtoptError], int] = {
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

MAX_PORT = 65535
USAGE = "usage: python docs/serving/app.py BUILD_FOLDER [PORT]"


def make_app(pool: EnginePool, *, policy: BatchPolicy | None = None) -> FastAPI:
    """The service of a pool, which is closed when the service ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with pool:
            async with AsyncBatcher(DynamicBatcher(pool, policy)) as batcher:
                app.state.pool, app.state.batcher = pool, batcher
                app.state.dtypes = {spec.name: numpy_dtype(spec.dtype) for spec in pool.catalogue.inputs}
                serve_promptly()
                yield

    app = FastAPI(title="trtopt", lifespan=lifespan)

    @app.post("/infer")
    async def infer(
        request: Request, inputs: Annotated[dict[str, Any], Body()], deadline_ms: float | None = None
    ) -> dict[str, Any]:
        sample = {
            name: as_array(name, values, request.app.state.dtypes.get(name))
            for name, values in inputs.items()
        }
        outputs = await request.app.state.batcher.submit(sample, deadline_ms=deadline_ms, copy=False)
        return {name: values.tolist() for name, values in outputs.items()}

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
        retry = {"Retry-After": "1"} if isinstance(error, QueueFullError) else None
        body = {"error": type(error).__name__, "problem": error.problem, "remedy": error.remedy}
        return JSONResponse(body, STATUS.get(type(error), 500), headers=retry)

    return app


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


def main(arguments: Sequence[str]) -> int:
    """Serve until told to end; the exit code."""
    port = arguments[1] if len(arguments) > 1 else "8000"
    is_known = len(arguments) in (1, 2) and not arguments[0].startswith("-")
    if not is_known or not port.isdecimal() or int(port) > MAX_PORT:
        print(USAGE, file=sys.stderr)
        return UsageError.exit_code
    try:
        app = make_app(EnginePool.open(arguments[0], workers=2))
    except TrtoptError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    # Clients keep idle connections for some seconds, too: the server must not be the first to let go.
    uvicorn.run(app, port=int(port), log_level="warning", timeout_keep_alive=75)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
