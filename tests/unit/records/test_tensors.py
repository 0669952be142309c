"""The shapes of vectorised formats."""

from hypothesis import given, strategies as st

from trtopt.records.tensors import VECTORS, nchw_sample, stored_shape


@given(st.sampled_from(sorted(VECTORS)), st.tuples(*[st.integers(1, 70)] * 3))
def test_the_stored_shape_of_a_sample_leads_back_to_it(layout: str, sample: tuple[int, int, int]) -> None:
    stored = stored_shape(layout, (1, *sample))[1:]
    assert nchw_sample(layout, stored, sample[0]) == sample
    assert nchw_sample(layout, (*stored[:-1], stored[-1] + 1), sample[0]) is None
    assert nchw_sample(layout, sample[:2], sample[0]) is None
