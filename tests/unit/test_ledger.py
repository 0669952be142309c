from itertools import pairwise

import msgspec
import pytest

from trtopt.measure.contracts import CONTRACTS, changed
from trtopt.measure.ledger import START, Point, ledger, rows, steps_between
from trtopt.records import Contract

OLD, NEW = CONTRACTS["trtexec-10"], CONTRACTS["trtexec-11"]


def terms(contract: Contract) -> dict[str, object]:
    return {
        field.name: getattr(contract, field.name)
        for field in msgspec.structs.fields(Contract)
        if field.name != "name"
    }


@pytest.mark.parametrize("start", list(CONTRACTS.values()), ids=lambda contract: contract.name)
@pytest.mark.parametrize("end", list(CONTRACTS.values()), ids=lambda contract: contract.name)
def test_every_step_changes_one_term_and_the_last_is_the_end(start: Contract, end: Contract) -> None:
    steps = steps_between(start, end)
    assert steps[0] == type(steps[0])(START, start)
    assert terms(steps[-1].contract) == terms(end)
    for before, after in pairwise(steps):
        changed = [
            term for term, value in terms(after.contract).items() if terms(before.contract)[term] != value
        ]
        assert changed == [after.term]
    differing = [term for term, value in terms(end).items() if terms(start)[term] != value]
    assert sorted(step.term for step in steps[1:]) == sorted(differing)


def test_the_steps_from_trtexec_10_to_11_are_graph_transfers_and_sync() -> None:
    steps = steps_between(OLD, NEW)
    assert [(step.term, step.contract.name) for step in steps] == [
        ("start", "trtexec-10"),
        ("graph", "trtexec-10+graph"),
        ("transfers", "trtexec-10+graph+no-transfers"),
        ("sync", "trtexec-11"),
    ]


def test_a_contract_has_no_steps_to_itself() -> None:
    assert [step.term for step in steps_between(OLD, OLD)] == [START]


def test_streams_and_queue_are_named_with_their_value() -> None:
    start = CONTRACTS["isolated"]
    end = msgspec.structs.replace(start, name="end", queue_ahead=1, streams=4, graph=True)
    assert [step.contract.name for step in steps_between(start, end)] == [
        "isolated",
        "isolated+graph",
        "isolated+graph+queue=1",
        "end",
    ]


def test_pinning_changes_while_transfers_are_on() -> None:
    pageable = changed(OLD, {"pinned": False})
    assert [step.term for step in steps_between(NEW, pageable)[1:]] == [
        "graph",
        "transfers",
        "pinned",
        "sync",
    ]
    assert [step.term for step in steps_between(pageable, NEW)[1:]] == [
        "graph",
        "pinned",
        "transfers",
        "sync",
    ]


def point(term: str, median_ms: float, half_ms: float = 0.001) -> Point:
    return Point(term, median_ms, median_ms - half_ms, median_ms + half_ms)


def test_every_microsecond_is_assigned_to_its_term() -> None:
    found = ledger([point("start", 1.0), point("graph", 0.9), point("transfers", 0.6), point("sync", 0.58)])
    assert [(entry.term, round(entry.explained_us, 6)) for entry in found.entries] == [
        ("graph", -100.0),
        ("transfers", -300.0),
        ("sync", -20.0),
    ]
    assert found.difference_us == pytest.approx(-420.0)
    assert found.unexplained_us == pytest.approx(0.0, abs=1e-9)


def test_a_change_within_its_uncertainty_is_unexplained() -> None:
    """Half-intervals of 3 and 4 µs make one of 5 µs."""
    found = ledger([point("start", 1.0, 0.003), point("graph", 1.0049, 0.004), point("sync", 1.1049, 0.003)])
    assert found.entries[0].uncertainty_us == pytest.approx(5.0)
    assert [entry.significant for entry in found.entries] == [False, True]
    assert found.entries[0].explained_us == 0.0
    assert found.unexplained_us == pytest.approx(4.9)


def test_a_difference_stated_elsewhere_leaves_what_the_chain_does_not_reproduce() -> None:
    found = ledger([point("start", 1.0), point("graph", 0.9)], start_ms=1.02, end_ms=0.87)
    assert found.difference_us == pytest.approx(-150.0)
    assert found.unexplained_us == pytest.approx(-50.0)


def test_explained_and_unexplained_always_add_up_to_the_difference() -> None:
    found = ledger(
        [point("start", 1.0, 0.05), point("graph", 0.97, 0.05), point("sync", 0.4)], start_ms=1.1, end_ms=0.35
    )
    explained = sum(entry.explained_us for entry in found.entries)
    assert explained + found.unexplained_us == pytest.approx(found.difference_us)


def test_the_table_goes_from_start_to_end_with_the_rest_as_unexplained() -> None:
    found = ledger([point("start", 1.0), point("graph", 0.9), point("sync", 0.9005)])
    assert rows(found) == [
        ("from", "", "1000.0"),
        ("graph", "-100.0 ± 1.4", "-100.0"),
        ("sync", "+0.5 ± 1.4", "within noise"),
        ("unexplained", "", "+0.5"),
        ("to", "", "900.5"),
    ]


def test_a_ledger_of_one_point_has_no_difference() -> None:
    found = ledger([point("start", 1.0)])
    assert (found.difference_us, found.entries, found.unexplained_us) == (0.0, (), 0.0)


def test_a_ledger_of_no_points_is_refused() -> None:
    with pytest.raises(ValueError, match="at least its start"):
        ledger([])
