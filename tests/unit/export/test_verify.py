"""Comparing outputs: what counts as the same."""

from __future__ import annotations

import numpy as np
import pytest

from trtopt.export.verify import difference, relative


def _difference(expected: object, actual: object, mismatch: float = 0.0) -> str:
    array = np.asarray
    return difference("y", array(expected), array(actual), tolerance=1e-3, mismatch=mismatch) or ""


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ([1.0, 2.0], [1.0, 2.0]),
        ([1.0, 2.0], [1.0005, 2.0]),
        ([0.0, 100.0], [0.05, 100.0]),
        ([np.nan, np.inf, -np.inf, 1.0], [np.nan, np.inf, -np.inf, 1.0]),
        ([1, 2], [1, 2]),
        ([True, False], [True, False]),
        (np.zeros((0, 3)), np.zeros((0, 3))),
    ],
)
def test_equal_within_rounding(expected: object, actual: object) -> None:
    assert _difference(expected, actual) == ""


@pytest.mark.parametrize(
    ("expected", "actual", "said"),
    [
        ([1.0, 2.0], [1.0, 2.1], "the worst is at (1,): 2.1, PyTorch gives 2.0"),
        ([1.0], [np.nan], "nan"),
        ([1.0], [np.inf], "inf"),
        ([np.inf], [-np.inf], "-inf"),
        ([[1.0, 2.0]], [1.0, 2.0], "shape (2,), PyTorch gives (1, 2)"),
        ([1.0], [1], "type int64, PyTorch gives float64"),
        ([1, 2, 3], [1, 2, 4], "33.33%"),
        ([True, False], [True, True], "50.00%"),
        ([2**60, 5000], [2**60 + 50, 5000], "50.00%"),
        ([1e200, 2e200], [-1e200, 2e200], "50.00%"),
        ([1e-200], [-1e-200], "100.00%"),
        ([1e308], [-1e308], "100.00%"),
    ],
)
def test_what_differs_is_shown(expected: object, actual: object, said: str) -> None:
    assert said in _difference(expected, actual)


def test_ranked_outputs_may_differ_in_a_stated_share() -> None:
    expected, actual = np.arange(100.0), np.arange(100.0)
    actual[[3, 4]] = actual[[4, 3]]
    assert "2.00%" in _difference(expected, actual, mismatch=0.01)
    assert _difference(expected, actual, mismatch=0.02) == ""


def test_the_gap_is_measured_against_element_and_tensor() -> None:
    assert relative(np.array([0.0, 0.0]), np.array([0.0, 0.0])).tolist() == [0.0, 0.0]
    assert relative(np.array([3.0, 3.0]), np.array([3.0, 6.0])).tolist() == [0.0, 0.5]
