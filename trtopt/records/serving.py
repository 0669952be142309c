"""Records of serving: the batching policy, and counts of requests by outcome."""

from __future__ import annotations

from trtopt.records.base import Record


class BatchPolicy(Record, frozen=True, kw_only=True):
    """When waiting requests become a batch, and how many may wait.

    A batch runs when it holds `max_batch` requests, or when its oldest has waited for `max_delay_ms`, as soon
    as a worker is free. While `max_waiting` requests wait, more are rejected. A request of several rows
    counts as so many.
    """

    max_batch: int
    max_delay_ms: float = 2.0
    max_waiting: int = 1024


class Spread(Record, frozen=True, kw_only=True):
    """The distribution of times; all None where there are none yet."""

    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    max_ms: float | None


class BatcherStatistics(Record, frozen=True, kw_only=True):
    """A batcher's requests so far, by outcome.

    `invalid` and `rejected` requests were never accepted: they did not fit the model, or too many were
    waiting. Each accepted one was `answered`, `failed`, `expired` or `cancelled`, or is still `waiting` or
    `running`. `batch_sizes` counts batches by how many rows they held. `queue` is from acceptance to the
    batch's start, one value a request; `compute` from there to the answers, one value a batch; both of the
    latest 4,096 values.
    """

    accepted: int
    rejected: int
    invalid: int
    answered: int
    failed: int
    expired: int
    cancelled: int
    waiting: int
    running: int
    batch_sizes: dict[int, int]
    queue: Spread
    compute: Spread


class PoolUsage(Record, frozen=True, kw_only=True):
    """The state of a pool.

    `prepared` counts engines that are ready at some shapes, over all workers, and `graphs` those of them
    with a CUDA graph; `prepared_bytes` is their device memory: inputs, outputs, and activations where the
    engine reports them. `bound_bytes` bounds it, but each worker keeps one, however large. `graph_refused`
    says why there is no graph, if one was tried. `workers` counts those left; `replaced` those that failed
    and were replaced.
    """

    workers: int
    replaced: int
    prepared: int
    graphs: int
    evicted: int
    prepared_bytes: int
    bound_bytes: int
    graph_refused: str | None
