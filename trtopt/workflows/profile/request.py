"""The check of a profile's request, before anything is built."""

from __future__ import annotations

from trtopt.device.nvtx import require_nvtx
from trtopt.errors import UsageError
from trtopt.requests.profile import ProfileRequest


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
