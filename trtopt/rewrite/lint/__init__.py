"""Advice where no rewrite is safe: what in a graph will be slow or odd on TensorRT, why, what would help."""
