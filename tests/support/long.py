"""What of a test's parameters `make test` leaves to `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(*kept: Any, of: Iterable[Any]) -> list[Any]:
    """All of them; those that are not `kept` go through the same code, and are marked as long."""
    every = list(of)
    assert set(kept) < set(every)
    rows = [one if isinstance(one, tuple) else (one,) for one in every]
    return [
        pytest.param(*row, marks=() if one in kept else pytest.mark.long)
        for one, row in zip(every, rows, strict=True)
    ]
