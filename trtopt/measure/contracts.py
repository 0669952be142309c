"""The named terms under which numbers are taken, and what a flag makes of them."""

from __future__ import annotations

import msgspec

from trtopt.errors import UsageError
from trtopt.records import Contract

CONTRACTS = {
    contract.name: contract
    for contract in (
        # trtexec's defaults up to 10.x: plain enqueue, copies in and out, one query ahead, a sleeping host.
        Contract(name="trtexec-10", graph=False, transfers=True, queue_ahead=1, sync="blocking"),
        # trtexec's defaults from 11.0: CUDA graph, no copies, a spinning host. Not comparable with the above.
        Contract(name="trtexec-11", graph=True, transfers=False, queue_ahead=1, sync="spin"),
        # One kernel sequence at a time.
        Contract(name="isolated", graph=False, transfers=False, queue_ahead=0, sync="spin"),
    )
}
DEFAULT = "trtexec-11"


def contract_named(name: str) -> Contract:
    """A contract by name.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in CONTRACTS:
        raise UsageError(f"--contract {name}: no such contract", f"choose among {', '.join(CONTRACTS)}")
    return CONTRACTS[name]


def changed(contract: Contract, *, graph: bool | None = None, streams: int | None = None) -> Contract:
    """The contract with other terms; its name says so: `trtexec-11+no-graph`."""
    name = contract.name
    if graph is not None and graph != contract.graph:
        name += "+graph" if graph else "+no-graph"
    if streams is not None and streams != contract.streams:
        name += f"+streams={streams}"
    return msgspec.structs.replace(
        contract,
        name=name,
        graph=contract.graph if graph is None else graph,
        streams=contract.streams if streams is None else streams,
    )


def one_in_flight(contract: Contract) -> Contract:
    """The contract's terms for a latency pass: one stream, nothing queued ahead."""
    return msgspec.structs.replace(contract, queue_ahead=0, streams=1)
