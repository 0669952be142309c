"""Which batch size is best under a latency bound?

python docs/batch_sweep.py MODEL.onnx BOUND_MS [BATCH,BATCH,…]
"""

import sys

import trtopt

model, bound_ms = sys.argv[1], float(sys.argv[2])
batches = [int(size) for size in (sys.argv[3] if len(sys.argv) > 3 else "1,2,4,8,16,32").split(",")]

trtopt.build(model, "sweep", batch=batches)
report = trtopt.bench("sweep", backend="auto", duration=1.0)
print(f"{report.environment.backend} on {report.environment.device.name}")

best = None
for point in report.points:
    p99 = trtopt.summarise(point.latency.samples.latency_ms).percentiles[99.0]
    rate = trtopt.throughput(point.throughput.samples, point.batch).samples_per_s
    fits = p99 is not None and p99 <= bound_ms
    shown = "too few samples" if p99 is None else f"{p99:.3f} ms"
    print(
        f"batch {point.batch:4}: p99 {shown:>12}{rate:14,.0f} samples/s{'' if fits else '  over the bound'}"
    )
    if fits and (best is None or rate > best[1]):
        best = (point.batch, rate)
print(f"best batch with p99 ≤ {bound_ms:g} ms: {best[0] if best else 'none'}")
