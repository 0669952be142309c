"""The search for nodes to keep, on errors made up: sums, culprits, interactions, no order at all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, strategies as st

from trtopt.precision.search import Found, Names, Trial, front, minimal, search, short_start

NODES = [f"n{index}" for index in range(12)]
PLENTY = 10_000
subsets = st.frozensets(st.sampled_from(NODES))


class Counted:
    """An error function that refuses to be asked twice for the same set."""

    def __init__(self, error: Callable[[Names], float]) -> None:
        self.error = error
        self.asked: list[Names] = []

    def __call__(self, kept: Names) -> float:
        assert kept not in self.asked
        self.asked.append(kept)
        return self.error(kept)


def run(error: Callable[[Names], float], nodes: list[str] = NODES, most: int = PLENTY) -> Found:
    evaluate = Counted(error)
    found = search({name: 1 / len(nodes) for name in nodes}, evaluate, most)
    assert [trial.kept for trial in found.trials] == evaluate.asked
    assert len(found.trials) <= most
    return found


def kept(found: Found) -> Names:
    assert found.best is not None
    return found.best.kept


def culprits(*names: str) -> Callable[[Names], float]:
    """All of them must be kept; everything else does a little."""
    return lambda kept: 0.5 + 10.0 * len(set(names) - kept)


def is_minimal(found: Found, error: Callable[[Names], float]) -> bool:
    """Whether the bound is met, and by no set with one node less."""
    best = kept(found)
    return error(best) <= 1 and all(error(best - {name}) > 1 for name in best)


@given(subsets)
def test_the_culprits_are_found_and_nothing_else(names: Names) -> None:
    found = run(culprits(*names))
    assert kept(found) == names
    assert found.minimal


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_of_errors_that_add_up_the_largest_go_first(errors: list[float]) -> None:
    alone = dict(zip(NODES, errors, strict=True))

    def error(kept: Names) -> float:
        return sum(alone[name] for name in NODES if name not in kept)

    found = run(error)
    assert is_minimal(found, error)
    fewest = next(count for count in range(13) if sum(sorted(errors, reverse=True)[count:]) <= 1 + 1e-9)
    assert fewest <= len(kept(found)) <= fewest + 1  # sums differ in the last bit by their order


@given(st.lists(st.sampled_from(NODES), min_size=2, max_size=12, unique=True))
def test_of_two_nodes_that_hurt_only_together_one_is_kept(names: list[str]) -> None:
    pairs = list(zip(names[::2], names[1::2], strict=False))

    def error(kept: Names) -> float:
        return 0.1 + sum(5.0 for pair in pairs if kept.isdisjoint(pair))

    found = run(error)
    assert len(kept(found)) == len(pairs)
    assert all(len(kept(found) & set(pair)) == 1 for pair in pairs)


def test_two_nodes_that_help_only_together_are_both_kept() -> None:
    found = run(lambda kept: 0.0 if {"n3", "n9"} <= kept else 3.0)
    assert kept(found) == {"n3", "n9"}
    assert found.minimal


def test_a_node_whose_error_another_s_cancels_is_no_reason_to_keep_both() -> None:
    """Keeping n1 alone spoils what n5 made up for; the set must do without either, or have both."""

    def error(kept: Names) -> float:
        return 4.0 * (("n1" in kept) != ("n5" in kept)) + 4.0 * ("n7" not in kept)

    assert kept(run(error)) == {"n7"}


@given(st.integers(0, 10**6), st.integers(2, 400), st.floats(1.5, 8))
def test_without_any_order_the_answer_still_meets_the_bound_and_says_if_it_is_minimal(
    seed: int, most: int, largest: float
) -> None:
    def error(kept: Names) -> float:
        if kept == frozenset(NODES):
            return 0.0
        return random.Random(f"{seed} {sorted(kept)}").uniform(0, largest) if kept else 2.0

    found = run(error, most=most)
    assert error(kept(found)) <= 1
    assert all(len(kept(found)) <= len(trial.kept) for trial in found.trials if trial.meets)
    if found.minimal:
        assert is_minimal(found, error)


def test_nodes_beyond_what_can_be_ranked_one_by_one_are_found_in_groups() -> None:
    nodes = [f"n{index}" for index in range(1000)]
    found = run(culprits("n17", "n501", "n502"), nodes, most=200)
    assert kept(found) == {"n17", "n501", "n502"}
    assert found.minimal
    assert len(found.alone[0][0]) == 20


def test_nodes_that_are_all_needed_are_distinguished_from_no_answer() -> None:
    found = run(lambda kept: 0.0 if len(kept) == 12 else 2.0)
    assert kept(found) == set(NODES)
    assert found.minimal


def test_when_evaluations_are_spent_the_answer_is_the_best_so_far_and_said_to_be_that() -> None:
    found = run(culprits("n2", "n4", "n8"), most=4)
    assert len(found.trials) == 4
    assert kept(found) >= {"n2", "n4", "n8"}
    assert not found.minimal


@pytest.mark.parametrize(("error", "tried", "best"), [(1.0, 1, frozenset()), (1.01, 2, None)])
def test_nothing_to_keep_and_nothing_that_helps_take_no_search(
    error: float, tried: int, best: Names | None
) -> None:
    found = run(lambda kept: error)
    assert len(found.trials) == tried
    assert (found.best and found.best.kept) == best


def test_of_sets_of_one_size_the_cheapest_is_taken() -> None:
    shares = {"big": 0.9, "small": 0.1}
    found = search(shares, lambda kept: 2.0 if not kept else 0.0, PLENTY)
    assert found.best == Trial(frozenset({"small"}), 0.0, 0.1)


def test_sensitivity_is_the_error_alone_in_low_precision_largest_first() -> None:
    found = run(
        lambda kept: 0.0 if len(kept) == 12 else 1.0 + sum(int(n[1:]) for n in NODES if n not in kept)
    )
    assert found.alone[0] == (frozenset({"n11"}), 12.0)
    assert [error for _, error in found.alone] == sorted((1.0 + n for n in range(12)), reverse=True)


@given(st.lists(st.builds(Trial, subsets, st.floats(0, 9), st.floats(0, 1)), min_size=1))
def test_on_the_front_none_is_beaten_and_every_trial_is_matched(trials: list[Trial]) -> None:
    kept = front(trials)
    assert [item.cost for item in kept] == sorted({item.cost for item in kept})
    assert [item.error for item in kept] == sorted({item.error for item in kept}, reverse=True)
    for trial in trials:
        assert any(item.cost <= trial.cost and item.error <= trial.error for item in kept)


@given(st.lists(st.frozensets(st.sampled_from(range(12)), min_size=1), min_size=1, max_size=3))
def test_ddmin_leaves_nothing_that_can_be_dropped(causes: list[frozenset[int]]) -> None:
    """Any of several sets of items makes it hold, whatever else is there."""

    def holds(items: Sequence[int]) -> bool:
        return any(cause <= set(items) for cause in causes)

    first = short_start(range(12), holds)
    assert list(first) == list(range(len(first)))
    assert holds(first)
    assert not holds(first[:-1])
    left = minimal(first, holds)
    assert holds(left)
    assert not any(holds([item for item in left if item != one]) for one in left)
