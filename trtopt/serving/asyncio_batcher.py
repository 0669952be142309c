"""The batcher for asyncio, which is imported at use: every worker process imports this module."""

from __future__ import annotations

from types import TracebackType

from trtopt.records import BatcherStatistics
from trtopt.serving.batcher import DynamicBatcher
from trtopt.serving.pool_worker import Outputs


class AsyncBatcher:
    """A `DynamicBatcher` whose answers are awaited; several event loops may use one."""

    def __init__(self, batcher: DynamicBatcher) -> None:
        self._batcher = batcher

    async def submit(self, sample: object, *, deadline_ms: float | None = None, copy: bool = True) -> Outputs:
        """As `DynamicBatcher.submit`, and its answer. Cancelling the task cancels a request that waits."""
        import asyncio

        return await asyncio.wrap_future(self._batcher.submit(sample, deadline_ms=deadline_ms, copy=copy))

    async def submit_rows(
        self, rows: object, *, deadline_ms: float | None = None, copy: bool = True
    ) -> Outputs:
        """As `DynamicBatcher.submit_rows`, and its answer; otherwise as `submit`."""
        import asyncio

        return await asyncio.wrap_future(self._batcher.submit_rows(rows, deadline_ms=deadline_ms, copy=copy))

    def statistics(self) -> BatcherStatistics:
        """What became of the requests so far."""
        return self._batcher.statistics()

    async def close(self, *, drain: bool = True) -> None:
        """As `DynamicBatcher.close`, while the event loop continues."""
        import asyncio

        await asyncio.to_thread(self._batcher.close, drain=drain)

    async def __aenter__(self) -> AsyncBatcher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
