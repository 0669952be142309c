"""Plans of few requests: for what is searched many times, and roughly."""

from collections.abc import Iterator
from functools import partial

import pytest

from trtopt.serving.planning import search


def simulate_few(patch: pytest.MonkeyPatch) -> None:
    """A search simulates a tenth of the requests, and its finalists in four runs instead of ten."""
    patch.setattr(search, "_SIEVE", tuple((keep, requests // 10) for keep, requests in search._SIEVE))
    patch.setattr(search, "predict", partial(search.predict, runs=4))
    patch.setattr(search, "_MOST_REQUESTS", search._MOST_REQUESTS // 10)


@pytest.fixture(scope="module", autouse=True)
def few_simulated() -> Iterator[None]:
    """For a file of tests that imports it."""
    with pytest.MonkeyPatch.context() as patch:
        simulate_few(patch)
        yield
