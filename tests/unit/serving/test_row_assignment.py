from hypothesis import given, strategies as st

from trtopt.serving.pool_worker import Cut, assign_rows


def test_parts_are_cut_where_a_batch_is_full() -> None:
    assert assign_rows((3, 4), (5, 2)) == ((Cut(0, 0, 3, 0), Cut(1, 0, 2, 3)), (Cut(1, 2, 4, 0),))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_every_row_is_dealt_once_and_in_order(parts: list[int], data: st.DataObject) -> None:
    total = sum(parts)
    ends = sorted(data.draw(st.sets(st.integers(1, total))) | {total})
    batches = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    dealt = assign_rows(tuple(parts), tuple(batches))
    rows = [(cut.part, row) for cuts in dealt for cut in cuts for row in range(cut.start, cut.stop)]
    assert rows == [(part, row) for part, count in enumerate(parts) for row in range(count)]
    for cuts, count in zip(dealt, batches, strict=True):
        places = [cut.at + row for cut in cuts for row in range(cut.stop - cut.start)]
        assert places == list(range(count))
