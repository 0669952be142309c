"""The request of `profile`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from trtopt.options import Argument, Option
from trtopt.requests.bench import BenchRequest
from trtopt.requests.shared import Axes, Backend, Batch, Inputs, Nvtx, Request, Shapes, Timeout, Trust


@dataclass(frozen=True)
class ProfileRequest(Request):
    """What to profile."""

    path: Annotated[str | Path, Argument("a build folder, an engine in one, or an ONNX file.")]
    _: KW_ONLY
    batch: Annotated[Batch, "Batch sizes [default: those of the engines]."] = None
    shapes: Shapes = None
    axes: Axes = None
    data: Inputs = None
    backend: Annotated[
        Backend, "Backend to run with [default: the engines' own; auto: the CPU if there is no GPU]."
    ] = None
    result: Annotated[
        str | Path | None,
        Option(
            "Use a result file of `trtopt bench --layers` instead of measuring here.",
            metavar="FILE",
            must_exist=True,
        ),
    ] = None
    against: Annotated[
        str | Path | None,
        Option(
            "An earlier profile (file or folder): show the differences, layer by layer.",
            python="an earlier profile (file or folder) to show the differences from, layer by layer: "
            "from its engine of the same batch size, or its only one.",
            metavar="PROFILE",
            must_exist=True,
        ),
    ] = None
    memory: Annotated[bool, Option("Trace every allocation too, in a separate pass.")] = False
    kernels: Annotated[bool, Option("Record every kernel too (CUPTI), in a separate pass.")] = False
    timeout: Timeout = None
    trust: Trust = ()
    nvtx: Nvtx = False
    probe_peaks: Annotated[
        bool, Option("Measure the device's peak rates, for floors; stored for later profiles.")
    ] = False
    duration: Annotated[
        float,
        Option("Seconds of the latency pass that accompanies the layer pass, up to a day.", metavar="S"),
    ] = 1.0

    @property
    def measurement(self) -> BenchRequest:
        """The request of the measurement that a profile starts from."""
        return BenchRequest(
            self.path,
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
