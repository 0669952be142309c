"""What the tests of searches share."""

import pytest

from tests.support.brief_plans import simulate_few


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search simulates few requests."""
    simulate_few(monkeypatch)
