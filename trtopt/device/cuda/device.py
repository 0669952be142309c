"""What CUDA devices share, whichever binding they go through."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from trtopt.device.api import ActivityRecorder, ClockSensor, Event, Piece, Stream
from trtopt.device.cuda.batched import copy_pieces
from trtopt.device.cuda.cupti import CuptiRecorder
from trtopt.device.event_polling import poll
from trtopt.device.nvml import open_sensor
from trtopt.device.nvtx import NvtxMarks
from trtopt.device.ort.host import HostMemory
from trtopt.records import DeviceInfo


class CudaDevice:
    """See `device.api.Device`."""

    def __init__(self, info: DeviceInfo, marks: NvtxMarks) -> None:
        self.info = info
        self._marks = marks

    now = staticmethod(time.perf_counter)

    def pageable_buffer(self, nbytes: int) -> HostMemory:
        """Host memory that is not page-locked."""
        return HostMemory(nbytes)

    def gather(self, pieces: Sequence[Piece], stream: Stream) -> None:
        """Enqueue copies, by the driver itself."""
        copy_pieces(pieces, stream.handle)

    def wait_any(self, events: Sequence[Event], until_s: float) -> None:
        """Poll them."""
        poll(events, until_s)

    def clock_sensor(self) -> ClockSensor:
        """NVML's."""
        return open_sensor(self.info)

    def activity_recorder(self, *, ranges: bool = False) -> ActivityRecorder:
        """CUPTI's."""
        return CuptiRecorder(ranges=ranges)

    def annotate(self, name: str) -> AbstractContextManager[object]:
        """An NVTX range."""
        return self._marks.range(name)
