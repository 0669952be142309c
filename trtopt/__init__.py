"""trtopt: from a trained model to the fastest TensorRT engine its owner can trust."""

from trtopt.version import __version__

__all__ = ["__version__"]
