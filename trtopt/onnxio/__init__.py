"""ONNX models to work on: read with their weights left on disk, made walkable, given inputs, written."""
