"""What NVIDIA's profilers are shown of a run: NVTX ranges, and the stretch that they are to capture."""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager, nullcontext

from trtopt.errors import BackendMissingError
from trtopt.extras import install

_PACKAGE = "nvtx"
_DOMAIN = "trtopt"


def require_nvtx() -> None:
    """Find out that NVTX ranges can be had before anything is done."""
    if importlib.util.find_spec(_PACKAGE) is None:
        raise BackendMissingError(f"--nvtx: the package {_PACKAGE!r} is not installed", install("nvtx"))


class NvtxMarks:
    """Ranges if `nvtx`, profiler start and stop around what is measured if `cuda_profiler`; else nothing."""

    def __init__(self, *, nvtx: bool = False, cuda_profiler: bool = False) -> None:
        if nvtx:
            require_nvtx()
        self.nvtx, self.cuda_profiler = nvtx, cuda_profiler

    def range(self, name: str) -> AbstractContextManager[object]:
        """A range of that name around what the calling thread does meanwhile."""
        if not self.nvtx:
            return nullcontext()
        import nvtx

        made: AbstractContextManager[object] = nvtx.annotate(name, domain=_DOMAIN)
        return made


UNMARKED = NvtxMarks()
