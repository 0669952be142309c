"""ONNX Runtime: builder, runtime, layer times, and the reference that results are compared with.

Importing it through this package disables telemetry first. ONNX Runtime would otherwise report to its
vendor, and leave a file for that in the temporary folder.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
