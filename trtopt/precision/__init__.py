"""Precision in the graph: casts, calibration, where Q/DQ belong, and writing them."""
