"""How fast a device copies within its own memory."""

from __future__ import annotations

from contextlib import ExitStack, closing

import numpy as np

from trtopt.device.api import Device

_WARM_COPIES = 3
_COPIES = 20


def copy_bandwidth(device: Device, nbytes: int) -> float:
    """Bytes/s, those read and those written together: the median of single copies of `nbytes`.

    Timed by events on the device. `nbytes` should be many times its caches.
    """
    with ExitStack() as resources:
        stream = resources.enter_context(closing(device.stream()))
        source, target = (resources.enter_context(closing(device.device_buffer(nbytes))) for _ in range(2))
        begin, end = (resources.enter_context(closing(device.event())) for _ in range(2))
        taken_ms = []
        for copy in range(_WARM_COPIES + _COPIES):
            begin.record(stream)
            device.copy_on_device(target, source, stream)
            end.record(stream)
            end.wait()
            if copy >= _WARM_COPIES:
                taken_ms.append(end.elapsed_ms(begin))
    return 2 * nbytes / (float(np.median(taken_ms)) / 1e3)
