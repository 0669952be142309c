"""What does trtopt's loop add to a bare CUDA-graph launch?

    python host_cost.py BUILD_FOLDER OUT.json

In one process, alternating: trtopt's latency pass with a graph at batch 1, and a bare loop that only
launches the same engine's graph and waits. Prints medians of the host time of one launch, in microseconds.
"""

import json
import statistics
import sys
import time
from pathlib import Path

from trtopt.data.random_inputs import random_batch
from trtopt.device.backends import open_target
from trtopt.device.cuda.cuda_python import load_runtime
from trtopt.files.manifests import read_manifest, read_verified
from trtopt.measure.contracts import contract_named
from trtopt.measure.loop.sampling import Subject, measure
from trtopt.measure.loop.stopping import Limits
from trtopt.records import EngineRef

ROUNDS = 5
LAUNCHES = 2000


def bare_launches_us(device, session, shapes):
    """Host microseconds of each bare launch; the host waits for each before the next."""
    context, stream = session.context(shapes), device.stream()
    buffers = {binding.name: device.device_buffer(binding.nbytes) for binding in context.bindings}
    context.bind(buffers)
    context.enqueue(stream)
    stream.synchronize()
    runtime, handle = load_runtime(), stream.handle
    runtime.cudaStreamBeginCapture(handle, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal)
    context.enqueue(stream)
    _, graph = runtime.cudaStreamEndCapture(handle)
    launch, (_, executable) = runtime.cudaGraphLaunch, runtime.cudaGraphInstantiate(graph, 0)
    times = []
    for _ in range(LAUNCHES):
        before = time.perf_counter_ns()
        launch(executable, handle)
        times.append((time.perf_counter_ns() - before) / 1e3)
        stream.synchronize()
    runtime.cudaGraphExecDestroy(executable)
    runtime.cudaGraphDestroy(graph)
    for resource in (*buffers.values(), stream, context):
        resource.close()
    return times


def main(folder, out):
    """Alternate the two and report both medians and their ratio."""
    folder = Path(folder)
    artifact = read_manifest(folder).engines[0]
    target = open_target("tensorrt")
    session = target.load(read_verified(folder / artifact.path, artifact.sha256))
    shapes = {name: wanted.min for name, wanted in artifact.plan.shapes.items()}
    subject = Subject(
        session=session,
        engine=EngineRef(path=artifact.path, sha256=artifact.sha256, label=artifact.plan.label),
        batch=artifact.plan.batch.min[0],
        shapes=shapes,
        data=random_batch(session.inputs, shapes),
    )
    ours, bare = [], []
    for _ in range(ROUNDS):
        bare.append(statistics.median(bare_launches_us(target.device, session, shapes)))
        taken = measure(subject, contract_named("trtexec-11"), "latency", Limits(0.2, 1.0))
        ours.append(statistics.median(taken.samples.enqueue_ms) * 1e3)
    session.close()
    result = {
        "engine": artifact.path,
        "binding": target.device.info.binding,
        "bare_launch_us": bare,
        "trtopt_enqueue_us": ours,
        "ratio": statistics.median(ours) / statistics.median(bare),
    }
    target.close()
    Path(out).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
