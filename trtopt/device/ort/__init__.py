"""ONNX Runtime: builder, runtime, layer times, and the reference that results are compared with.

Whoever imports it imports this first: ONNX Runtime reports to its maker unless told otherwise, and leaves a
file for that in the temporary folder.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
