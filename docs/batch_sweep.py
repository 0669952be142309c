"""Which batch size is best under a bound on p99? python docs/batch_sweep.py MODEL.onnx BOUND_MS"""

import sys

import trtopt

model, bound_ms = sys.argv[1], float(sys.argv[2])
report = trtopt.sweep(model, "sweep", batch=[1, 2, 4, 8, 16, 32], duration=1.0)
fitting = [point for point in report.measured if (point.latency.p99_ms or point.latency.max_ms) <= bound_ms]
print(*(f"{point.label}: {point.samples_per_s:,.0f} samples/s" for point in report.measured), sep="\n")
print("best:", max(fitting, key=lambda point: point.samples_per_s).label if fitting else "none")
