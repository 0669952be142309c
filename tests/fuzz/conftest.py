"""Every target's cases, run once: two processes at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fuzz.fuzz_cases import Counters, run_cases
from tests.fuzz.fuzz_seeds import make_seeds
from tests.fuzz.fuzz_targets import NATIVE, TARGETS


@pytest.fixture(scope="session")
def tallies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counters]:
    """What became of each target's cases, from number 0 on."""
    seeds = tmp_path_factory.mktemp("seeds")
    make_seeds(seeds)
    targets = NATIVE | TARGETS
    with ThreadPoolExecutor(2) as pool:
        done = pool.map(lambda name: run_cases(name, Path(seeds), 0, targets[name].cases), targets)
        return dict(zip(targets, done, strict=True))
