"""Measuring: the sampling loop, and pure statistics and analysis of its samples."""
