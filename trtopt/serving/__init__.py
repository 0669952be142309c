"""Serving: engines selected for each batch, and single requests made into batches."""

from trtopt.records import BatcherStatistics, BatchPolicy, PoolUsage
from trtopt.serving.batcher import DynamicBatcher
from trtopt.serving.pool import EnginePool
from trtopt.serving.scheduling import serve_promptly

__all__ = [
    "BatchPolicy",
    "BatcherStatistics",
    "DynamicBatcher",
    "EnginePool",
    "PoolUsage",
    "serve_promptly",
]
