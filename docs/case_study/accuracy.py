"""The metric of the case study; it needs no torch."""

import numpy as np


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Share of sentences whose largest logit is that of the word said most often."""
    return float((logits.argmax(axis=1) == labels).mean())
