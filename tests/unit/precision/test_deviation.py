"""The figures of a comparison against their formulas, however the values are cut into batches."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from trtopt.precision.bounds import Bounds, violations
from trtopt.precision.compare import Deviation, is_classifier

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


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e200, 1e300])
def test_errors_whose_squares_leave_the_range_of_fp64_count(size: float) -> None:
    """Warnings are errors here: products of both signs, summed before they are scaled, are ∞ - ∞."""
    reference, other = np.random.default_rng(1).standard_normal((2, 1000))
    usual, extreme = Deviation("y"), Deviation("y")
    usual.add(reference, other)
    extreme.add(size * reference, size * other)
    assert extreme.result().cosine == pytest.approx(usual.result().cosine, rel=1e-9)
    assert extreme.result().sqnr_db == pytest.approx(usual.result().sqnr_db, rel=1e-9)


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


LABELS = ("bool", "int32", "uint32", "int64", "uint64")
NUMBERS = ("int8", "uint8", "int16", "float16", "bfloat16", "float32", "float64")


def planted(kind: str, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A reference of any magnitude that the type has, and one that differs from it in some places."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 9))
    dtype = np.dtype(getattr(ml_dtypes, kind) if kind == "bfloat16" else kind)
    changed: NDArray[Any]
    if dtype.kind == "b":
        reference = rng.random(size) < 0.5
        changed = ~reference
    elif dtype.kind in "iu":
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        reference = rng.integers(low, high, size, dtype, endpoint=True)
        step = dtype.type(rng.choice([1, 50, 2 ** (dtype.itemsize * 8 - 2)]))
        changed = np.where(reference > (low + high) // 2, reference - step, reference + step)
    else:
        kinds = ml_dtypes.finfo(dtype)
        bottom, top = math.log10(float(kinds.smallest_subnormal)), math.log10(float(kinds.max) / 2)
        exponents = rng.uniform(bottom, top, size) if rng.random() < 0.5 else rng.uniform(bottom, top)
        reference = (rng.choice([-1, 1], size) * 10.0**exponents).astype(dtype)
        ways = (
            -reference,
            reference / dtype.type(1.5),
            np.nextafter(reference, dtype.type(0)),
            0 * reference,
        )
        changed = ways[rng.integers(len(ways))]
    at = rng.random(size) < rng.choice([0.0, 0.2, 1.0])
    return reference, np.where(at, changed, reference).astype(dtype)


def check_exactly(reference: NDArray[Any], other: NDArray[Any]) -> None:
    """Hold all figures, and what bounds make of them, against rational arithmetic."""
    deviation = Deviation("y")
    for part in np.array_split(np.arange(reference.size), 3):
        deviation.add(reference[part], other[part])
    found = deviation.result()
    r, x = ([Fraction(value) for value in array.tolist()] for array in (reference, other))
    gaps = [one - two for one, two in zip(r, x, strict=True)]
    assert found.max_abs == pytest.approx(float(max(map(abs, gaps))), rel=1e-12, abs=0)
    assert (found.sqnr_db is None) == (not any(gaps))
    assert bool(violations([found], Bounds(max_error=0.0))) == any(gaps)
    if reference.dtype.name in LABELS:
        assert found.cosine == pytest.approx(np.mean(reference == other))
        return
    signal, noise, energy = (sum(one * one for one in values) for values in (r, gaps, x))
    product = sum(one * two for one, two in zip(r, x, strict=True))
    if noise and signal:
        wanted = 10 * (_log10(signal) - _log10(noise))
        assert found.sqnr_db == pytest.approx(max(wanted, -999.0), rel=1e-9, abs=1e-6)
    if signal and energy:
        share = float(product * product / (signal * energy))
        assert found.cosine == pytest.approx(
            math.copysign(math.sqrt(share), 1 if product > 0 else -1), abs=1e-9
        )
    else:
        assert found.cosine == float(signal == energy)


def _log10(value: Fraction | int) -> float:
    return math.log10(Fraction(value).numerator) - math.log10(Fraction(value).denominator)


@given(st.sampled_from((*LABELS, *NUMBERS)), st.integers(0, 2**32))
def test_the_figures_are_those_of_exact_arithmetic_for_any_type_and_magnitude(kind: str, seed: int) -> None:
    check_exactly(*planted(kind, seed))


@pytest.mark.parametrize("bounds", [{"min_cosine": 0.999}, {"min_sqnr": 50.0}, {"max_error": 1.0}])
def test_long_integers_that_fp64_cannot_tell_apart_differ(bounds: dict[str, float]) -> None:
    deviation = Deviation("y")
    deviation.add(np.array([2**60], np.int64), np.array([2**60 + 50], np.int64))
    assert violations([deviation.result()], Bounds(**bounds))


def test_integers_of_other_types_are_compared_by_value() -> None:
    deviation = Deviation("y")
    deviation.add(np.array([-1, 2**62], np.int64), np.array([2**64 - 1, 2**62], np.uint64))
    found = deviation.result()
    assert (found.max_abs, found.cosine) == (2.0**64, 0.5)
