"""The check of a measurement's request, before anything is built."""

from __future__ import annotations

from pathlib import Path

from trtopt.data import open_data
from trtopt.device.affinity import AUTO, parse_cores
from trtopt.device.nvtx import require_nvtx
from trtopt.errors import UsageError
from trtopt.recipe import check_timeout
from trtopt.requests.bench import BenchRequest
from trtopt.workflows.bench.resolve_engines import check_trust


def check_request(request: BenchRequest) -> None:
    """Validate what no engine is needed for."""
    if not 0 < request.duration <= 86400 or not 0 <= request.warmup <= 3600:
        raise UsageError(
            f"--duration {request.duration:g} --warmup {request.warmup:g}: out of range",
            "give seconds above 0, at most a day",
        )
    check_timeout(request.timeout)
    check_trust(request.trust, [Path(request.path)])
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
