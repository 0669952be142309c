"""Measuring: the sampling loop and the pure judgements on its samples."""
