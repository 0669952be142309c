"""Element types by name, the ones NumPy lacks included."""

from __future__ import annotations

import numpy as np

from trtopt.errors import DataError

_EXTENSION_TYPES = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "int4",
    "uint4",
    "float4_e2m1fn",
)


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The dtype of that name; types that NumPy lacks come from ml_dtypes (which onnx brings).

    Raises:
        DataError: a type that is no number, such as strings.
    """
    if name in _EXTENSION_TYPES:
        import ml_dtypes

        extension: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
        return extension
    try:
        return np.dtype(name)
    except TypeError:
        raise DataError(
            f"an input or output has an element type that cannot be measured ({name})",
            "cut strings and other such tensors off the model, or feed them as numbers",
        ) from None
