"""What the tests in this folder build."""

import numpy as np

from tests.support.paths import ROOT

DIGITS = ROOT / "models" / "digits" / "digits.onnx"
HELDOUT = DIGITS.with_name("heldout.npz")
# Neither cuBLAS nor cuDNN is needed by these models, and test hosts may lack them.
SOURCES = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")


IMAGES = np.load(HELDOUT)["images"]


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether outputs are those of FP32, as far as TF32 goes."""
    return found.shape == wanted.shape and bool(np.allclose(found, wanted, rtol=1e-2, atol=2e-2))
