"""Measuring engines: which ones a path means, one after the other or interleaved."""
