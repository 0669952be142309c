import math
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, strategies as st

from trtopt.measure.analysis.gap_ledger import START, ledger, steps_between
from trtopt.measure.contracts import CONTRACTS, with_terms
from trtopt.records import Contract
from trtopt.report.comparison import ledger_rows

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
    assert steps[START] == start
    assert [*steps.values()][-1] == end
    for (_, before), (term, after) in pairwise(steps.items()):
        assert [name for name, value in terms(after).items() if terms(before)[name] != value] == [term]
    differing = [term for term, value in terms(end).items() if terms(start)[term] != value]
    assert sorted(steps.keys() - {START}) == sorted(differing)


def test_the_steps_from_trtexec_10_to_11_are_graph_transfers_and_sync() -> None:
    steps = steps_between(OLD, NEW)
    assert [(term, contract.name) for term, contract in steps.items()] == [
        ("start", "trtexec-10"),
        ("graph", "trtexec-10+graph"),
        ("transfers", "trtexec-10+graph+no-transfers"),
        ("sync", "trtexec-11"),
    ]


def test_a_contract_has_no_steps_to_itself() -> None:
    assert [*steps_between(OLD, OLD)] == [START]


def test_streams_and_queue_are_named_with_their_value() -> None:
    start = CONTRACTS["isolated"]
    end = msgspec.structs.replace(start, name="end", queue_ahead=1, streams=4, graph=True)
    assert [contract.name for contract in steps_between(start, end).values()] == [
        "isolated",
        "isolated+graph",
        "isolated+graph+queue=1",
        "end",
    ]


def test_pinning_changes_while_transfers_are_on() -> None:
    pageable = with_terms(OLD, {"pinned": False})
    assert [*steps_between(NEW, pageable)] == [
        START,
        "graph",
        "transfers",
        "pinned",
        "sync",
    ]
    assert [*steps_between(pageable, NEW)] == [
        START,
        "graph",
        "pinned",
        "transfers",
        "sync",
    ]


MILLISECONDS = st.floats(1e-3, 1e3)


CHAIN = {
    "start": (1.0, 1.1, 1.2),
    "graph": (0.9, 1.0, 1.1),
    "transfers": (0.6, 0.7, 0.8),
    "sync": (0.58, 0.68, 0.78),
}
"""The machine slows down from round to round, and every term does the same in each."""


def test_every_microsecond_is_assigned_to_its_term_whatever_the_rounds_were_like() -> None:
    found = ledger(CHAIN)
    assert [(entry.term, round(entry.explained_us, 6)) for entry in found.entries] == [
        ("graph", -100.0),
        ("transfers", -300.0),
        ("sync", -20.0),
    ]
    assert [entry.uncertainty_us for entry in found.entries] == pytest.approx([0.0] * 3, abs=1e-9)
    assert found.difference_us == pytest.approx(-420.0)
    assert found.unexplained_us == pytest.approx(0.0, abs=1e-9)


def test_the_uncertainty_is_students_on_the_rounds_differences() -> None:
    """Changes of -1, 0 and +4 µs: mean 1, variance 7, √(7/3) = 1.5275, t(2) = 4.303."""
    found = ledger({"start": (1.0, 1.0, 1.0), "graph": (0.999, 1.0, 1.004)})
    assert found.entries[0].change_us == pytest.approx(1.0)
    assert found.entries[0].uncertainty_us == pytest.approx(4.303 * math.sqrt(7 / 3), rel=1e-6)


def test_a_change_within_its_uncertainty_is_unexplained() -> None:
    found = ledger({"start": (1.0, 1.0), "graph": (1.001, 1.008), "sync": (1.101, 1.108)})
    assert [entry.significant for entry in found.entries] == [False, True]
    assert found.entries[0].explained_us == 0.0
    assert found.unexplained_us == pytest.approx(4.5)


def test_one_round_explains_nothing() -> None:
    found = ledger({"start": (1.0,), "graph": (0.5,)})
    assert not found.entries[0].significant
    assert found.unexplained_us == found.difference_us == pytest.approx(-500.0)


@given(st.integers(1, 5).flatmap(lambda rounds: st.lists(st.tuples(*[MILLISECONDS] * rounds), min_size=1)))
def test_explained_and_unexplained_always_add_up_to_the_difference(chain: list[tuple[float, ...]]) -> None:
    found = ledger({f"step {number}": rounds for number, rounds in enumerate(chain)})
    explained = math.fsum(entry.explained_us for entry in found.entries)
    assert explained + found.unexplained_us == pytest.approx(found.difference_us, abs=1e-6)
    changes = math.fsum(entry.change_us for entry in found.entries)
    assert changes == pytest.approx(found.difference_us, abs=1e-6)


def test_the_table_goes_from_start_to_end_with_the_rest_as_unexplained() -> None:
    unlike = (0.9, 0.903)
    found = ledger({"start": (1.0, 1.0), "graph": (0.9, 0.9), "sync": unlike, "streams": unlike})
    assert ledger_rows(found) == [
        ("from", "1000.0", ""),
        ("graph", "-100.0 ± 0.0", "-100.0"),
        ("sync", "+1.5 ± 19.1", "within noise"),
        ("streams", "no part in it", ""),
        ("unexplained", "", "+1.5"),
        ("to", "901.5", "-98.5"),
    ]


def test_a_ledger_of_one_point_has_no_difference() -> None:
    found = ledger({"start": (1.0,)})
    assert (found.difference_us, found.entries, found.unexplained_us) == (0.0, (), 0.0)


def test_a_ledger_of_unlike_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        ledger({"start": (1.0, 1.0), "graph": (1.0,)})
