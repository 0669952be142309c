"""What the tests of searches share."""

import pytest

from trtopt.serving.planning import prediction, search


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search simulates a tenth of the requests: for what is looked for many times, and roughly."""
    monkeypatch.setattr(search, "_SIEVE", tuple((keep, requests // 10) for keep, requests in search._SIEVE))
    monkeypatch.setattr(prediction, "_MOST_REQUESTS", prediction._MOST_REQUESTS // 10)
