"""What is measured for a gap ledger, and what comes of it."""

import msgspec
import pytest

from tests.support.interleaved_runs import block, turns
from tests.support.scripted_runs import terms
from trtopt.measure.analysis.gap_ledger import (
    START,
    evaluate_gap,
    gap_variants,
    time_between,
)
from trtopt.measure.analysis.interference import evaluate_groups
from trtopt.measure.contracts import contract_named, one_in_flight
from trtopt.measure.loop.interleaved import ValidRounds
from trtopt.records import Contract, TurnSamples

OLD, NEW = contract_named("trtexec-10"), contract_named("trtexec-11")


def named(start: Contract, end: Contract, mode: str) -> list[str]:
    return [variant.name for variant in gap_variants(start, end) if variant.mode == mode]


def test_every_step_is_measured_in_both_modes() -> None:
    expected = [START, "graph", "transfers", "sync"]
    assert named(OLD, NEW, "latency") == named(OLD, NEW, "throughput") == expected


def test_one_query_in_flight_has_no_part_in_queue_and_streams() -> None:
    start = contract_named("isolated")
    end = terms("isolated", queue_ahead=1, streams=4)
    assert named(start, end, "latency") == [START]
    assert named(start, end, "throughput") == [START, "queue_ahead", "streams"]


def measured(latencies: dict[str, float], per_query: dict[str, float]) -> list[TurnSamples]:
    """Three rounds of each step, at these milliseconds."""
    found = []
    for variant in gap_variants(OLD, NEW):
        latency = variant.mode == "latency"
        value = (latencies if latency else per_query)[variant.name]
        contract = one_in_flight(variant.contract) if latency else variant.contract
        blocks = [[value] * 4 for _ in range(3)]
        found.append(turns(variant.name, blocks, contract, variant.mode))
    return found


def in_loads(found: list[TurnSamples]) -> ValidRounds:
    """Each round in a load of its own."""
    return ValidRounds(tuple(found), (0, 1, 2), evaluate_groups([], None))


LATENCY = {START: 2.0, "graph": 1.8, "transfers": 1.2, "sync": 1.15}
PER_QUERY = {START: 1.5, "graph": 1.4, "transfers": 1.1, "sync": 1.1}


def test_both_figures_are_decomposed() -> None:
    gap = evaluate_gap(8, OLD, NEW, in_loads(measured(LATENCY, PER_QUERY)))
    assert [round(entry.change_us) for entry in gap.latency.entries] == [-200, -600, -50]
    assert [round(entry.change_us) for entry in gap.per_query.entries] == [-100, -300, 0]
    assert gap.latency.unexplained_us == pytest.approx(0.0, abs=1e-9)


def test_a_step_that_ran_on_the_same_terms_in_fact_has_no_part() -> None:
    """Where no graph can be had, the step to one measures the start again."""
    found = [
        msgspec.structs.replace(one, contract=msgspec.structs.replace(one.contract, graph=False))
        for one in measured(LATENCY, PER_QUERY)
    ]
    gap = evaluate_gap(8, OLD, NEW, in_loads(found))
    graph = gap.latency.entries[0]
    assert (graph.term, graph.change_us, graph.uncertainty_us) == ("graph", 0.0, 0.0)
    assert round(gap.latency.entries[1].change_us) == -800
    assert gap.latency.difference_us == pytest.approx(-850.0)


def test_filling_the_queue_is_no_part_of_the_time_per_query() -> None:
    """The first query waits for its copy of 5 ms, which the others' overlap."""
    filled = block([2.0] * 10)
    late = msgspec.structs.replace(filled, end_ms=[end + 5.0 for end in filled.end_ms])
    assert time_between(late) == pytest.approx(2.0)
