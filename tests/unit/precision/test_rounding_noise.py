"""What rounding explains of a newer engine's results, and what it does not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from trtopt.precision.rounding_noise import ChangedOutput, unit_of
from trtopt.records import OutputChange

UNIT = 2.0**-21
SHAPE = (4, 6, 5, 5)
RANDOM = np.random.default_rng(7)
EXACT = RANDOM.standard_normal(SHAPE)


def noisy(scale: float = 1e-6) -> np.ndarray:
    """The float model's values, rounded otherwise."""
    return EXACT * (1 + RANDOM.uniform(-scale, scale, SHAPE))


MOVED = [noisy() for _ in range(3)]


def change(
    new: np.ndarray,
    old: np.ndarray = EXACT,
    exact: np.ndarray = EXACT,
    moved: list[np.ndarray] | None = None,
) -> OutputChange:
    """Of one batch."""
    found = ChangedOutput("y", UNIT)
    found.add("normal inputs", exact, MOVED if moved is None else moved, old, new)
    return found.result(4)


def test_another_rounding_is_no_change() -> None:
    found = change(noisy(), old=noisy())
    assert (found.wrong, found.undecided, found.skipped, found.inputs) == (0, 0, 0, ())


@pytest.mark.parametrize("place", [(2, 3), (slice(None), 5), (1,), (3, 5, 4, 4)])
def test_a_wrong_part_is_found_however_small(place: tuple[int | slice, ...]) -> None:
    new = noisy()
    new[place] = np.roll(new, 1, axis=1)[place]
    found = change(new)
    assert found.wrong == np.size(new[place])
    assert found.inputs == ("normal inputs",)
    assert found.undecided == 0


def test_a_loud_channel_does_not_hide_a_wrong_value_in_a_quiet_one_of_its_noise() -> None:
    loud = np.where(np.arange(6)[:, None, None] == 0, 1e3, 1.0)
    new = EXACT * loud
    new[0, 3, 2, 2] += 0.2
    assert change(new, old=EXACT * loud, exact=EXACT * loud, moved=[one * loud for one in MOVED]).wrong == 1


@pytest.mark.parametrize("count", [2, 20])
@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1)])
def test_coordinates_in_pixels_hide_no_scores(count: int, axes: tuple[int, ...]) -> None:
    def detected(coarse: float) -> np.ndarray:
        pixels, scores = (np.random.default_rng(1).random((4, many, 50)) for many in (4, count))
        exact = np.concatenate([640 * pixels, scores], axis=1).transpose(axes)
        return exact * (1 + RANDOM.uniform(-coarse, coarse, exact.shape))

    exact, moved = detected(0), [detected(3e-3) for _ in range(3)]
    new = detected(5e-4)
    found = ChangedOutput("y", 2.0**-11)
    found.add("normal inputs", exact, moved, detected(5e-4), new)
    assert found.result(4).wrong == 0
    new.transpose(axes)[:, 4:] = 0
    found.add("normal inputs", exact, moved, detected(5e-4), new)
    assert found.result(4).wrong > 0.9 * 4 * count * 50


def test_an_infinity_that_rounding_leaves_must_stay() -> None:
    masked = EXACT.copy()
    masked[:, :, 0] = -np.inf
    moved = [np.where(np.isinf(masked), masked, one) for one in MOVED]
    found = change(masked, masked, masked, moved)
    assert (found.wrong, found.undecided, found.skipped, found.verdict) == (0, 0, 0, "ok")
    assert change(EXACT, masked, masked, moved).verdict == "undecided"
    assert change(np.where(np.isinf(masked), np.nan, masked), masked, masked, moved).verdict == "undecided"


def test_nothing_is_shown_where_most_values_say_nothing() -> None:
    assert change(EXACT, moved=[np.where(EXACT < 0.5, np.inf, one) for one in MOVED]).verdict == "undecided"
    none = np.zeros((4, 0))
    assert change(none, none, none, [none] * 3).verdict == "undecided"


def test_what_lies_as_far_from_the_float_model_as_before_is_no_change() -> None:
    assert change(EXACT + 0.5, old=EXACT + 0.5).wrong == 0
    assert change(noisy(), old=EXACT + 0.5).wrong == 0


def test_both_far_and_apart_is_undecided() -> None:
    found = change(EXACT - 0.5, old=EXACT + 0.5)
    assert (found.wrong, found.undecided) == (0, EXACT.size)


def test_nan_in_the_newer_one_alone_is_wrong_and_skipped_where_rounding_alone_makes_it() -> None:
    new, moved = noisy(), [one.copy() for one in MOVED]
    new[0, 0, 0, 0] = np.nan
    assert change(new).wrong == 1
    moved[1][0, 0, 0, 0] = np.inf
    found = change(new, moved=moved)
    assert (found.wrong, found.skipped) == (0, 1)
    assert change(noisy(), old=new).wrong == 0


def test_another_shape_is_wrong_unless_rounding_alone_changes_it() -> None:
    assert change(EXACT[:, :5]).wrong == EXACT.size
    both = ChangedOutput("y", UNIT)
    for new in (EXACT[:, :5], noisy(3e-6)):
        both.add("normal inputs", EXACT, MOVED, EXACT, new)
    assert str(EXACT[:, :5].shape) in both.result(4).worst
    none, some = np.zeros((4, 0)), np.zeros((4, 2))
    assert change(some, none, none, [none] * 3).wrong == some.size
    assert change(EXACT[:, :4], moved=[one[:, :5] for one in MOVED]).verdict == "undecided"
    found = change(EXACT[:, :5], moved=[one[:, :5] for one in MOVED])
    assert (found.wrong, found.skipped) == (0, EXACT.size)


def test_integers_may_differ_at_ties_alone() -> None:
    exact = np.arange(40).reshape(4, 10)
    new = exact.copy()
    new[2, 2] += 1
    tied = exact.copy()
    tied[2, 2] += 1
    assert change(new, exact, exact, [exact] * 3).wrong == 1
    assert change(new, exact, exact, [exact, tied, exact]).wrong == 0
    new[:, 5] = 0
    assert change(new, exact, exact, [exact, tied, exact]).wrong == 4
    assert change(exact, new, exact, [exact] * 3).wrong == 0


def test_one_number_a_sample_needs_more_than_one_lucky_draw() -> None:
    exact = np.array([1.0, 2.0, 3.0, 4.0])
    moved = [exact * (1 + scale) for scale in (1e-7, -2e-7, 1e-7)]
    assert change(exact * (1 + 2e-6), exact, exact, moved).wrong == 0
    assert change(exact * (1 + 1e-3), exact, exact, moved).wrong == 4


def test_the_narrowest_type_decides_what_rounding_is() -> None:
    def model(kind: int) -> onnx.ModelProto:
        x, y = (helper.make_tensor_value_info(name, kind, (2,)) for name in "xy")
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])

    full, half, brain = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    units = [unit_of(model(kind), on_gpu=False) for kind in (full, half, brain)]
    assert units == sorted(units)
    assert units[1] == unit_of(model(full), on_gpu=True) == 2**-11
