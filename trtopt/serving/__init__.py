"""Serving: engines selected for each batch, and single requests made into batches."""

from trtopt.records import BatcherStatistics, BatchPolicy, PoolUsage
from trtopt.serving.batcher import DynamicBatcher, serve_promptly
from trtopt.serving.pool import EnginePool

__all__ = [
    "BatchPolicy",
    "BatcherStatistics",
    "DynamicBatcher",
    "EnginePool",
    "PoolUsage",
    "serve_promptly",
]
