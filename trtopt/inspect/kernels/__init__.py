"""Kernels: what their names say, which layers and ONNX nodes they serve, and what they add up to. Pure."""
