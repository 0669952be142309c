"""Which forms of INT8 are built at a batch size, and which regions a graph would have."""

from __future__ import annotations

from hypothesis import given, strategies as st

from trtopt.precision.placement.evidence import ROWS, Expected, expected
from trtopt.precision.placement.forms import CHOICES, PLAIN, Forms, parse_forms
from trtopt.workflows.build.candidates import FormSearch

A, B = Forms(attention="on"), Forms(residual="skip")
BOTH = Forms(attention="on", residual="skip")
PLACES = {name: choices[1:] for name, choices in CHOICES.items()}


def of(*known: tuple[Forms, float, float], budget: int = 3) -> FormSearch:
    return FormSearch([Expected(*one) for one in known], budget)


def build(search: FormSearch, change: float | None) -> Forms:
    """Take the next one, with its change; None: it could not be built."""
    forms = search.next()
    assert forms is not None
    search.measured[forms] = change
    search.built += change is not None
    return forms


def test_a_form_that_keeps_its_promise_ends_the_search() -> None:
    search = of((A, -0.2, 0.0), (B, -0.1, 0.0))
    assert build(search, -0.19) == A
    assert search.next() is None
    assert search.untried() == ()


def test_what_was_seen_elsewhere_may_gain_more_here() -> None:
    search = of((A, -0.2, 0.0), (B, -0.19, 1.0))
    assert build(search, -0.2) == A
    assert search.next() == B


def test_what_disappoints_is_followed_by_the_next_and_the_budget_ends_it() -> None:
    search = of((A, -0.2, 0.0), (B, -0.1, 0.0), (PLAIN, -0.05, 0.0), budget=2)
    assert [build(search, 0.1), build(search, 0.1)] == [A, B]
    assert search.next() is None
    assert [one.forms for one in search.untried()] == [PLAIN]


def test_a_form_like_one_that_disappointed_is_not_hoped_for() -> None:
    like = Forms(attention="on", smoothing="off")
    search = of((A, -0.2, 0.0), (like, -0.19, 1.0), (B, -0.1, 0.0))
    assert build(search, 0.1) == A
    assert build(search, 0.0) == B
    assert search.next() is None


def test_what_cannot_be_built_takes_nothing_of_the_budget() -> None:
    search = of((A, -0.2, 0.0), (B, -0.1, 0.0), budget=1)
    assert [build(search, None), build(search, -0.1)] == [A, B]


def test_two_winners_are_combined_unless_that_is_known() -> None:
    search = of((A, -0.2, 0.0), (B, -0.2, 0.0))
    assert {build(search, -0.05), build(search, -0.04)} == {A, B}
    assert search.next() == BOTH
    known = of((A, -0.2, 0.0), (B, -0.2, 0.0), (BOTH, 0.1, 0.0))
    assert {build(known, -0.05), build(known, -0.04)} == {A, B}
    assert known.next() is None


@given(
    st.fixed_dictionaries({name: st.sampled_from(choices) for name, choices in CHOICES.items()}),
    st.sets(st.sampled_from(sorted(CHOICES))),
    st.integers(1, 512),
)
def test_forms_are_written_as_they_are_read_and_only_places_of_the_graph_are_expected(
    chosen: dict[str, str], places: set[str], batch: int
) -> None:
    forms = Forms(**chosen)  # type: ignore[arg-type]
    assert parse_forms(str(forms)) == forms
    found = expected({name: PLACES[name] for name in places}, batch, "a GPU", "8.6")
    assert found[0].rate == min(one.rate for one in found)
    assert len({one.forms for one in found}) == len(found)
    assert all(places >= one.forms.chosen.keys() for one in found)
    assert PLAIN in {one.forms for one in found}


def test_what_gained_in_a_place_that_a_graph_lacks_says_nothing_of_it() -> None:
    for places in (("gelu", "rest", "smoothing"), ()):
        found = expected({name: PLACES[name] for name in places}, 8, "NVIDIA H100", "8.6")
        assert {one.forms.residual for one in found} == {"none"}
        assert found[0].forms == PLAIN
        assert found[0].change < -0.15


def test_of_two_that_gain_as_much_the_one_that_builds_faster_comes_first() -> None:
    slow = Forms(attention="on", rest="half")
    assert build(of((slow, -0.2, 0.0), (A, -0.15, 0.0)), -0.1) == A
    search = FormSearch([Expected(slow, -0.2, 0.0, 32.41), Expected(A, -0.2, 0.0, 32.43)], 3)
    assert search.next() == A


def test_the_same_case_comes_before_others_and_of_forms_as_fast_the_most_accurate() -> None:
    places = {name: PLACES[name] for name in ROWS[0].places.split()}
    for batch, first in (
        (1, "attention=on"),
        (128, "residual=skip,attention=on,smoothing=off"),
    ):
        search = FormSearch(expected(places, batch, "NVIDIA H200", "8.6"), 3)
        assert search.next() == parse_forms(first)
        row = next(row for row in ROWS if row.batch == batch and row.forms == first)
        assert build(search, row.change) == parse_forms(first)
        assert search.next() is None
