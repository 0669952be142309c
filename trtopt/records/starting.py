"""Records of an engine's start in a fresh process, and of its latency after a pause."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record

PROCESS_START = "process start"
LIBRARY_LOAD = "library load"
READ = "read"
DESERIALISE = "deserialise"
CONTEXT = "context"
FIRST_INFERENCE = "first inference"
SECOND_INFERENCE = "second inference"
GRAPH_CAPTURE = "graph capture"
START_PHASES = (
    *(PROCESS_START, LIBRARY_LOAD, READ, DESERIALISE, CONTEXT),
    *(FIRST_INFERENCE, SECOND_INFERENCE, GRAPH_CAPTURE),
)
"""In the order in which they happen. `context` has the buffers as well; an engine that cannot be captured, or
a contract without a CUDA graph, has no `graph capture`."""


class ColdStart(Record, frozen=True, kw_only=True):
    """One start in a fresh process: milliseconds by phase, of `START_PHASES`.

    `page_cache` is that of the engine's file; Python and the libraries were always in it. The check of the
    file's hash and the making of the input belong to no phase.
    """

    page_cache: Literal["warm", "cold"]
    ms: dict[str, float]
    graph_refused: str | None = None

    @property
    def first_result_ms(self) -> float:
        """From the start of the process to the first output."""
        after = (SECOND_INFERENCE, GRAPH_CAPTURE)
        return sum(ms for phase, ms in self.ms.items() if phase not in after)


class ColdStarts(Record, frozen=True, kw_only=True):
    """All starts of one engine. `module_loading` is CUDA_MODULE_LOADING, empty without a GPU.

    `notes` say what was not measured, and why.
    """

    engine_bytes: int
    starts: tuple[ColdStart, ...]
    module_loading: str = ""
    notes: tuple[str, ...] = ()


class IdleGap(Record, frozen=True, kw_only=True):
    """Queries after a pause of `gap_ms`: the pauses that it came to, the latencies, and the SM clock.

    The clock was read at the end of each pause and after its query; None: not reported.
    """

    gap_ms: float
    idle_ms: list[float]
    latency_ms: list[float]
    sm_mhz_before: list[int | None]
    sm_mhz_after: list[int | None]


class IdlePass(Record, frozen=True, kw_only=True):
    """Latency after pauses, and `busy_ms` of queries that follow one another at once."""

    busy_ms: list[float]
    gaps: tuple[IdleGap, ...]
