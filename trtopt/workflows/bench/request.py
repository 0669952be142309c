"""The request of a measurement, validated before anything is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtopt.data import open_data
from trtopt.device.affinity import AUTO, parse_cores
from trtopt.device.nvtx import require_nvtx
from trtopt.errors import UsageError
from trtopt.measure.contracts import DURATION_S, WARMUP_S
from trtopt.recipe import Recipe, check_timeout, input_sizes
from trtopt.records import Terms
from trtopt.workflows.bench.resolve_engines import check_trust


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """How to measure; the fields are the parameters of `trtopt.bench`."""

    batch: Sequence[int] | None = None
    shapes: Mapping[str, str] | None = None
    axes: Mapping[str, int | Sequence[int]] | None = None
    backend: str | None = None
    contract: str | None = None
    terms: Terms = field(default_factory=lambda: Terms())
    duration: float = DURATION_S
    stop_early: bool = False
    warmup: float = WARMUP_S
    data: str | Path | None = None
    layers: bool = False
    memory: bool = False
    load: str | None = None
    max_latency: str | None = None
    kernels: bool = False
    idle: str | None = None
    cold_start: bool = False
    cpu_affinity: str | None = None
    lock_clocks: int | bool = False
    nvtx: bool = False
    cuda_profiler: bool = False
    timeout: float | None = None
    trust: Sequence[str] = ()

    @property
    def sizes(self) -> Recipe:
        """The shapes and axes, as a recipe that gives nothing else."""
        return input_sizes(self.shapes, self.axes)


def check_request(path: Path, request: BenchRequest) -> None:
    """Validate what no engine is needed for."""
    if not 0 < request.duration <= 86400 or not 0 <= request.warmup <= 3600:
        raise UsageError(
            f"--duration {request.duration:g} --warmup {request.warmup:g}: out of range",
            "give seconds above 0, at most a day",
        )
    check_timeout(request.timeout)
    check_trust(request.trust, [path])
    if request.lock_clocks is not False and request.lock_clocks < 1:
        raise UsageError(
            f"--lock-clocks {request.lock_clocks}: not a clock in MHz", "write, say, --lock-clocks 1500"
        )
    if request.cpu_affinity not in (None, AUTO):
        parse_cores(request.cpu_affinity)
    if request.data is not None:
        open_data(request.data)
    if request.nvtx:
        require_nvtx()
