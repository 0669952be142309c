"""TensorRT 8.6, 10, 11 and TensorRT-RTX: one code path, its differences in `trtopt/targets.py`."""
