"""A small HTTP service: every request is one sample, and those that come together share a batch.

pip install "trtopt[serve]"
python docs/serving/app.py BUILD_FOLDER [PORT]

POST /infer[?deadline_ms=…]  {"input name": nested lists, …}  →  {"output name": nested lists, …}
GET  /statistics             what became of the requests, and what the workers hold
GET  /health                 503 once no worker is left
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
import numpy as np
from fastapi import Body, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from trtopt.errors import (
    ClosedError,
    DataError,
    DeadlineError,
    QueueFullError,
    TrtoptError,
    WorkerError,
)
from trtopt.runtime import AsyncBatcher, BatchPolicy, DynamicBatcher, EnginePool, serve_promptly

STATUS: dict[type[TrtoptError], int] = {
    DataError: 422,
    QueueFullError: 503,
    ClosedError: 503,
    DeadlineError: 504,
    WorkerError: 500,
}


def make_app(folder: str, *, workers: int = 2, policy: BatchPolicy | None = None) -> FastAPI:
    """The service of a build folder; its engines are loaded when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with EnginePool.open(folder, workers=workers) as pool:
            async with AsyncBatcher(DynamicBatcher(pool, policy)) as batcher:
                app.state.pool, app.state.batcher = pool, batcher
                app.state.dtypes = {spec.name: spec.dtype for spec in pool.catalogue.inputs}
                serve_promptly()
                yield

    app = FastAPI(title="trtopt", lifespan=lifespan)

    @app.post("/infer")
    async def infer(
        request: Request, inputs: Annotated[dict[str, Any], Body()], deadline_ms: float | None = None
    ) -> dict[str, Any]:
        sample = {
            name: as_array(values, request.app.state.dtypes.get(name)) for name, values in inputs.items()
        }
        outputs = await request.app.state.batcher.submit(sample, deadline_ms=deadline_ms)
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


def as_array(values: object, dtype: str | None) -> np.ndarray:
    """Nested lists in the type that the engines take; a name that they do not know is told later."""
    try:
        return np.asarray(values, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"not an array of {dtype}: {error}", "send nested lists of equal lengths") from None


if __name__ == "__main__":
    import uvicorn

    port = int(sys.argv[2]) if len(sys.argv) > 2 else 8000
    # Clients keep idle connections for some seconds, too: the server must not be the first to let go.
    uvicorn.run(make_app(sys.argv[1]), port=port, log_level="warning", timeout_keep_alive=75)
