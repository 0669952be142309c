"""ONNX Runtime: builder, runtime, layer times, and the reference that results are compared with."""
