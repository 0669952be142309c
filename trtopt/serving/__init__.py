"""Serving: engines selected for each batch, and single requests made into batches."""

from trtopt.records import BatchPolicy
from trtopt.serving.batcher import BatcherStatistics, DynamicBatcher, serve_promptly
from trtopt.serving.pool import EnginePool, PoolUsage

__all__ = [
    "BatchPolicy",
    "BatcherStatistics",
    "DynamicBatcher",
    "EnginePool",
    "PoolUsage",
    "serve_promptly",
]
