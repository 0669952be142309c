"""Mutated input of every kind ends in success or a typed error: no traceback, hang, crash or stray file.

A fault names its case: `python tests/fuzz/fuzz_worker.py TARGET SEEDS NUMBER 1` runs it again.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.fuzz_cases import Counters
from tests.fuzz.fuzz_mutators import json_changed
from tests.fuzz.fuzz_targets import NATIVE, TARGETS

pytestmark = pytest.mark.long


@pytest.mark.parametrize("target", [*TARGETS, *NATIVE])
def test_whatever_a_file_holds_it_is_read_or_refused_with_a_reason(
    tallies: dict[str, Counters], target: str
) -> None:
    assert tallies[target].faults == {}


@pytest.mark.parametrize("target", [*TARGETS, *NATIVE])
def test_mutations_leave_some_files_good_and_make_others_bad(
    tallies: dict[str, Counters], target: str
) -> None:
    outcomes = tallies[target].outcomes
    assert 0 < outcomes["read"] < outcomes.total()


def test_a_case_follows_from_its_number_alone() -> None:
    """And not from the cases before it, whose mutations a value of the fuzzer's own would carry on."""
    seed = b'{"a": [1, {"b": []}], "c": "x"}'
    cases = {number: json_changed(Random(number), seed) for number in range(1000)}
    for number in reversed(cases):
        assert json_changed(Random(number), seed) == cases[number], number


def test_twenty_thousand_cases_are_run(tallies: dict[str, Counters]) -> None:
    assert sum(counters.cases for counters in tallies.values()) >= 20_000
