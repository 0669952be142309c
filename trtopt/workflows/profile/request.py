"""The request of a profile, validated before anything is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trtopt.device.nvtx import require_nvtx
from trtopt.errors import UsageError
from trtopt.workflows.bench.request import BenchRequest


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """What to profile; the fields are the parameters of `trtopt.profile`."""

    batch: Sequence[int] | None = None
    shapes: Mapping[str, str] | None = None
    axes: Mapping[str, int | Sequence[int]] | None = None
    data: str | Path | None = None
    backend: str | None = None
    result: str | Path | None = None
    against: str | Path | None = None
    memory: bool = False
    kernels: bool = False
    nvtx: bool = False
    probe_peaks: bool = False
    duration: float = 1.0
    timeout: float | None = None
    trust: Sequence[str] = ()

    @property
    def measurement(self) -> BenchRequest:
        """The request of the measurement that a profile starts from."""
        return BenchRequest(
            batch=self.batch,
            shapes=self.shapes,
            axes=self.axes,
            data=self.data,
            backend=self.backend,
            layers=True,
            memory=self.memory,
            kernels=self.kernels,
            nvtx=self.nvtx,
            duration=self.duration,
            timeout=self.timeout,
            trust=self.trust,
        )


def check_request(request: ProfileRequest) -> None:
    """Validate what no engine is needed for.

    Raises:
        UsageError: an option of the measurement where nothing is measured.
        BackendMissingError: NVTX without its package.
    """
    if request.nvtx:
        require_nvtx()  # later its absence would be taken for that of a GPU
    measuring = {
        "--memory": request.memory,
        "--kernels": request.kernels,
        "--data": request.data is not None,
        "--backend": request.backend is not None,
        "--duration": request.duration != ProfileRequest.duration,
        "--shape": bool(request.shapes),
        "--axis": bool(request.axes),
        "--nvtx": request.nvtx,
        "--probe-peaks": request.probe_peaks,
        "--trust": bool(request.trust),
        "--timeout": request.timeout is not None,
    }
    given = [flag for flag, is_given in measuring.items() if is_given]
    if given and request.result is not None:
        raise UsageError(
            f"{given[0]}: has no effect with --result, which measures nothing", "omit one of them"
        )
