"""The figures of a comparison against their formulas, however the values are cut into batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trtopt.precision.deviation import Deviation, is_classifier

RNG = np.random.default_rng(0)


@given(cuts=st.lists(st.integers(0, 40), max_size=4), noise=st.floats(1e-6, 10))
def test_the_figures_are_those_of_the_formulas(cuts: list[int], noise: float) -> None:
    reference = np.random.default_rng(1).standard_normal((40, 5)).astype(np.float32)
    other = (reference + noise * np.random.default_rng(2).standard_normal((40, 5))).astype(np.float32)
    deviation = Deviation("y", classifies=True)
    for first, last in zip([0, *sorted(cuts)], [*sorted(cuts), 40], strict=True):
        deviation.add(reference[first:last], other[first:last])
    found = deviation.result()
    r, x = reference.astype(float).ravel(), other.astype(float).ravel()
    assert found.sqnr_db == pytest.approx(10 * math.log10((r**2).sum() / ((r - x) ** 2).sum()), rel=1e-9)
    assert found.cosine == pytest.approx((r @ x) / np.linalg.norm(r) / np.linalg.norm(x), rel=1e-9)
    assert found.max_abs == np.abs(r - x).max()
    assert found.top1 == np.mean(reference.argmax(1) == other.argmax(1))
    assert found.values == 200


def test_equal_tensors_have_no_error() -> None:
    for array in (RNG.standard_normal((3, 4)), np.zeros((3, 4))):
        deviation = Deviation("y")
        deviation.add(array, array.copy())
        found = deviation.result()
        assert (found.sqnr_db, found.cosine, found.max_abs) == (None, 1, 0)


def test_an_error_on_nothing_is_the_worst() -> None:
    deviation = Deviation("y")
    deviation.add(np.zeros(3), np.ones(3))
    found = deviation.result()
    assert (found.sqnr_db, found.cosine) == (-999.0, 0.0)


def test_values_that_are_not_finite_in_one_only_are_counted_apart() -> None:
    deviation = Deviation("y")
    deviation.add(np.array([1, np.inf, np.nan, 2, -np.inf]), np.array([1, np.inf, np.nan, np.nan, np.inf]))
    found = deviation.result()
    assert (found.mismatched, found.sqnr_db, found.values) == (2, None, 5)


def test_other_shapes_are_no_comparison() -> None:
    with pytest.raises(ValueError, match="shapes"):
        Deviation("y").add(np.zeros(3), np.zeros((1, 3)))


def test_scores_are_told_from_embeddings() -> None:
    scores = RNG.standard_normal((6, 10)).astype(np.float32)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    embeddings = scores / np.linalg.norm(scores, axis=1, keepdims=True)
    assert is_classifier(scores)
    assert is_classifier(shares)
    assert is_classifier(np.eye(10)[:6])
    assert not is_classifier(embeddings)
    assert not is_classifier(scores[:, :1])
    assert not is_classifier(scores[None])
    assert not is_classifier(scores.astype(np.int64))
