"""Records of checks, in words."""

from __future__ import annotations

import pytest

from trtopt.records.precision import Violation


@pytest.mark.parametrize(
    ("found", "bound", "text"),
    [
        (0.98, 0.99, "cosine of 'y' is 0.98, the bound is 0.99"),
        (0.5, 1 - 1e-7, "cosine of 'y' is 0.5, the bound is 0.9999999"),
        (0.99996, 1.0, "cosine of 'y' is 0.99996, the bound is 1"),
        (0.99999991, 0.99999995, "cosine of 'y' is 0.99999991, the bound is 0.99999995"),
        (1 - 1e-16, 1.0, "cosine of 'y' is 0.9999999999999999, the bound is 1"),
    ],
)
def test_a_missed_bound_is_shown_with_the_digits_that_miss_it(found: float, bound: float, text: str) -> None:
    assert Violation(output="y", measure="cosine", found=found, bound=bound).text == text
