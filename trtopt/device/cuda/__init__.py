"""CUDA devices through one of two interchangeable bindings: cuda-python or pycuda."""
