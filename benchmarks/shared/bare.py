"""An engine without the library's loop: loaded, bound and launched without `trtopt.measure`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np

from trtopt.data.random_inputs import random_batch
from trtopt.device.api import Device, HostBuffer, Target
from trtopt.errors import GraphCaptureError
from trtopt.files.manifests import read_manifest, read_verified


def query(target: Target, folder: Path, batch: int, resources: ExitStack) -> Callable[[], None]:
    """Runs the build's engine of that batch size, on random input, and waits for it.

    Its CUDA graph is launched if there is one; nothing is copied. `resources` holds all that it takes.
    """
    engine = next(one for one in read_manifest(folder).engines if one.plan.batch.max == (batch,))
    shapes = {name: shape.opt for name, shape in engine.plan.shapes.items()}
    content, device = read_verified(folder / engine.path, engine.sha256), target.device
    session = resources.enter_context(closing(target.load(content)))
    context = resources.enter_context(closing(session.context(shapes)))
    stream = resources.enter_context(closing(device.stream()))
    buffers = {
        binding.name: resources.enter_context(closing(device.device_buffer(binding.nbytes)))
        for binding in context.bindings
    }
    for name, array in random_batch(session.inputs, shapes).items():
        host = resources.enter_context(closing(_host_copy(device, array)))
        device.copy_to_device(buffers[name], host, stream)
    context.bind(buffers)
    context.enqueue(stream)
    stream.synchronize()
    launch = context.launcher(stream)
    with suppress(GraphCaptureError):  # a processor has none
        graph = device.capture(stream, lambda: context.enqueue(stream))
        launch = resources.enter_context(closing(graph)).launch

    def run() -> None:
        launch()
        stream.synchronize()

    return run


def _host_copy(device: Device, array: np.ndarray) -> HostBuffer:
    host = device.pinned_buffer(array.nbytes)
    host.array[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return host
