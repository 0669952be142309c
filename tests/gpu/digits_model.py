"""What the tests in this folder build."""

from pathlib import Path

DIGITS = Path(__file__).parents[2] / "models" / "digits" / "digits.onnx"
HELDOUT = DIGITS.with_name("heldout.npz")
# Neither cuBLAS nor cuDNN is needed by these models, and test hosts may lack them.
SOURCES = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
