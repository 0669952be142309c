"""Serving: engines chosen for the batch at hand, and single requests made into batches."""

from trtopt.records import BatcherStatistics, BatchPolicy, PoolUsage
from trtopt.runtime.aio import AsyncBatcher
from trtopt.runtime.batcher import DynamicBatcher
from trtopt.runtime.pool import EnginePool
from trtopt.runtime.punctual import serve_promptly

__all__ = [
    "AsyncBatcher",
    "BatchPolicy",
    "BatcherStatistics",
    "DynamicBatcher",
    "EnginePool",
    "PoolUsage",
    "serve_promptly",
]
