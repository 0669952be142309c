"""The named terms under which numbers are taken, and what changes of them make of a name."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from trtopt.errors import UsageError
from trtopt.records import Contract

_TABLE = (
    # trtexec's defaults up to 10.x: plain enqueue, copies in and out, one query ahead, a sleeping host.
    (
        Contract(name="trtexec-10", graph=False, transfers=True, queue_ahead=1, sync="blocking"),
        "as trtexec before 11.0",
    ),
    # trtexec's defaults from 11.0: CUDA graph, no copies, a spinning host. Not comparable with the above.
    (
        Contract(name="trtexec-11", graph=True, transfers=False, queue_ahead=1, sync="spin"),
        "as trtexec from 11.0 on",
    ),
    # What a good server does: one query's input, another's compute and a third one's output at a time.
    (
        Contract(name="serving", graph=True, transfers=True, queue_ahead=2, sync="spin"),
        "what a good server gets",
    ),
    # One kernel sequence at a time.
    (
        Contract(name="isolated", graph=False, transfers=False, queue_ahead=0, sync="spin"),
        "the kernels alone, nothing queued",
    ),
)
"""Each contract and what it stands for: the one place to add one."""

TERMS = tuple(name for name in Contract.__struct_fields__ if name != "name")
CONTRACTS = {contract.name: contract for contract, _ in _TABLE}
SUMMARIES = {contract.name: summary for contract, summary in _TABLE}
DEFAULT = "trtexec-11"
DURATION_S, WARMUP_S = 3.0, 0.2
"""Of sampling per pass, and before samples count, unless the user gives others."""
THRESHOLD = 0.01
"""A difference below it is of no practical interest, unless --threshold is given."""


_FLAGS = {"queue_ahead": "queue"}
"""Flags that are not called like their term."""

_LIMITS = {"queue_ahead": (0, 1024), "streams": (1, 1024)}


def contract_named(name: str) -> Contract:
    """A contract by name, or by the name that `with_terms` gives one: `trtexec-11+no-graph`."""
    base, *changes = name.split("+")
    terms = dict(map(_change, changes))
    if base not in CONTRACTS or not {*terms} <= {*TERMS}:
        raise UsageError(f"--contract {name}: no such contract", f"choose among {', '.join(CONTRACTS)}")
    return with_terms(CONTRACTS[base], terms)


def contract_for(name: str | None, terms: Mapping[str, object] | None = None) -> Contract:
    """The contract that a request names, else the default one, with the request's terms."""
    return with_terms(contract_named(name or DEFAULT), terms or {})


def _change(text: str) -> tuple[str, object]:
    """A term and its value, of what `flag` gives."""
    name, given, value = text.partition("=")
    term = next((term for term, own in _FLAGS.items() if own == name), name)
    if given:
        return term, int(value) if value.isascii() and value.isdecimal() else value
    return term.removeprefix("no-"), not term.startswith("no-")


def with_terms(contract: Contract, terms: Mapping[str, object]) -> Contract:
    """The contract with other terms; its name shows all that differs: `trtexec-11+no-graph+streams=2`."""
    _check_ranges(terms)
    try:
        new = msgspec.convert({**msgspec.to_builtins(contract), **terms}, Contract)
    except msgspec.ValidationError as error:
        raise UsageError(f"terms {dict(terms)}: {error}", f"terms are {', '.join(TERMS)}") from None
    if "pinned" in terms and not (new.pinned or new.transfers):
        raise UsageError(
            "--no-pinned: without transfers nothing is copied from or to the host's memory",
            "add --transfers, or choose a contract with transfers",
        )
    named = CONTRACTS.get(contract.name.partition("+")[0], contract)
    values = {term: getattr(new, term) for term in TERMS}
    differing = [flag(term, value) for term, value in values.items() if value != getattr(named, term)]
    return msgspec.structs.replace(new, name="+".join((named.name, *differing)))


def _check_ranges(terms: Mapping[str, object]) -> None:
    for term, (low, high) in _LIMITS.items():
        value = terms.get(term, low)
        if isinstance(value, int) and not low <= value <= high:
            raise UsageError(
                f"--{flag(term, value).replace('=', ' ')}: out of range", f"give {low} to {high}"
            )


def flag(term: str, value: object) -> str:
    """A term's value as its flag gives it, without dashes: `graph`, `no-graph`, `queue=2`."""
    name = _FLAGS.get(term, term)
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    return f"{name}={value}"


def one_in_flight(contract: Contract) -> Contract:
    """The contract's terms for a latency pass: one stream, nothing queued ahead."""
    return msgspec.structs.replace(contract, queue_ahead=0, streams=1)
