"""Rules that make a graph easier for TensorRT to fuse, their driver, and the proof that they are sound."""
