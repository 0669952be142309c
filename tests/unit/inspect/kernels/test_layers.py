"""Launches cut into stretches by the layers' times."""

from hypothesis import given, strategies as st

from trtopt.inspect.kernels.layers import assign_layers

TIMES = st.floats(0.01, 1.0)


@given(st.lists(st.lists(TIMES, min_size=1, max_size=4), min_size=2, max_size=6))
def test_layers_as_long_as_their_launches_get_exactly_those(stretches: list[list[float]]) -> None:
    found = assign_layers([ms for one in stretches for ms in one], [sum(one) for one in stretches])
    assert found == [(index, "likely") for index, one in enumerate(stretches) for _ in one]


@given(st.lists(TIMES, max_size=12), st.lists(st.one_of(st.just(0.0), TIMES), max_size=6))
def test_stretches_follow_one_another_and_cover_every_launch(
    launches: list[float], layers: list[float]
) -> None:
    found = assign_layers(launches, layers)
    assert len(found) == len(launches)
    homes = [home for home, _ in found]
    assert homes == sorted(homes)
    assert all(home == -1 or layers[home] > 0 for home in homes)


def test_one_layer_has_all_launches_for_certain_and_a_bad_fit_is_unknown() -> None:
    assert assign_layers([0.1, 5.0], [0.0, 1.0]) == [(1, "certain"), (1, "certain")]
    assert assign_layers([1.0, 9.0], [1.0, 3.0]) == [(0, "likely"), (1, "unknown")]
    assert assign_layers([1.0], []) == [(-1, "unknown")]


def test_what_a_profilers_events_add_to_short_layers_does_not_unfit_them() -> None:
    assert assign_layers([0.002, 0.002], [0.006, 0.005]) == [(0, "likely"), (1, "likely")]
