from functools import lru_cache
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from trtopt.serving.engine_selection import EngineSelector, Offer, Piece

FIXED = [Offer(1, 1), Offer(8, 8), Offer(32, 32)]


@pytest.mark.parametrize(
    ("rows", "batches"),
    [(1, [1]), (2, [8]), (8, [8]), (9, [32]), (32, [32]), (33, [32, 1]), (70, [32, 32, 8])],
)
def test_unmeasured_engines_the_smallest_that_fits_and_the_largest_for_what_is_over(
    rows: int, batches: list[int]
) -> None:
    pieces = EngineSelector(FIXED).pieces(rows)
    assert [piece.batch for piece in pieces] == batches
    assert sum(piece.rows for piece in pieces) == rows


def test_an_engine_for_one_batch_size_comes_before_one_for_a_range() -> None:
    offers = [Offer(1, 32), Offer(8, 8)]
    assert EngineSelector(offers).pieces(8) == (Piece(1, 8, 8),)
    assert EngineSelector(offers).pieces(5) == (Piece(0, 5, 5),)
    assert EngineSelector([Offer(4, 8)]).pieces(2) == (Piece(0, 4, 2),)


@pytest.mark.parametrize(
    ("eight_ms", "batches"),
    [(1.9, [8]), (2.5, [2, 1]), (2.0, [8])],  # of equal times, fewer pieces
)
def test_a_batch_is_padded_up_where_that_was_measured_to_be_cheaper(
    eight_ms: float, batches: list[int]
) -> None:
    offers = [Offer(1, 1, ((1, 1.0),)), Offer(2, 2, ((2, 1.0),)), Offer(8, 8, ((8, eight_ms),))]
    assert [piece.batch for piece in EngineSelector(offers).pieces(3)] == batches


PARTLY = [
    Offer(1, 1, ((1, 1.0),)),
    Offer(2, 2, ((2, 3.0),)),
    Offer(4, 4),
    Offer(8, 8, ((8, 2.5),)),
    Offer(16, 16),
]


@pytest.mark.parametrize(
    ("rows", "batches"),
    [(1, [1]), (2, [1, 1]), (3, [4]), (5, [8]), (9, [16]), (17, [16, 1]), (19, [16, 4]), (40, [16, 16, 8])],
)
def test_an_engine_that_was_not_measured_runs_what_it_holds_best_and_the_others_compete(
    rows: int, batches: list[int]
) -> None:
    assert [piece.batch for piece in EngineSelector(PARTLY).pieces(rows)] == batches


def test_where_the_largest_was_measured_it_competes_for_what_is_over_it() -> None:
    offers = [Offer(1, 1), Offer(2, 2, ((2, 1.0),)), Offer(4, 4, ((4, 9.0),))]
    assert [piece.batch for piece in EngineSelector(offers).pieces(11)] == [2] * 5 + [1]


def test_a_range_is_split_where_it_was_measured() -> None:
    offer = Offer(1, 32, ((1, 1.0), (8, 1.5), (32, 9.0)))
    assert [piece.batch for piece in EngineSelector([offer]).pieces(24)] == [8, 8, 8]


def test_times_between_measured_batches_lie_on_a_line_and_beyond_grow_with_the_rows() -> None:
    offer = Offer(1, 64, ((2, 1.0), (8, 4.0)))
    assert [offer.time_ms(batch) for batch in (1, 2, 5, 8, 16)] == [1.0, 1.0, 2.5, 4.0, 8.0]


@st.composite
def measured(draw: st.DrawFn) -> list[Offer]:
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True))
    times = st.integers(1, 40).map(lambda n: n / 4)  # exact sums
    return [Offer(size, size, ((size, draw(times)),)) for size in sizes]


@given(measured(), st.integers(1, 60))
def test_the_pieces_hold_all_rows_and_take_the_least_time_there_is(offers: list[Offer], rows: int) -> None:
    selector = EngineSelector(offers)

    @lru_cache
    def least(left: int) -> float:
        if left == 0:
            return 0.0
        return min(offer.time_ms(offer.high) + least(left - min(left, offer.high)) for offer in offers)

    pieces = selector.pieces(rows)
    assert sum(piece.rows for piece in pieces) == rows
    assert all(1 <= piece.rows <= piece.batch == offers[piece.offer].high for piece in pieces)
    if rows <= 2 * selector.largest:
        taken = sum(offers[piece.offer].time_ms(piece.batch) for piece in pieces)
        assert taken == least(rows)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=4), st.integers(1, 50))
def test_unmeasured_pieces_hold_all_rows_within_what_the_engines_admit(
    ranges: list[tuple[int, int]], rows: int
) -> None:
    offers = [Offer(low, low + more) for low, more in ranges]
    pieces = EngineSelector(offers).pieces(rows)
    assert sum(piece.rows for piece in pieces) == rows
    for piece in pieces:
        assert offers[piece.offer].low <= piece.batch <= offers[piece.offer].high
        assert 1 <= piece.rows <= piece.batch
    assert all(first.rows == first.batch for first, _ in pairwise(pieces))
