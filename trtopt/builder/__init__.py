"""Engines from ONNX: plans, timing caches, progress."""
