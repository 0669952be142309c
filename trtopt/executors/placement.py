"""Judgements on a cluster: which nodes may run a job, what it needs there, when it is tried again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trtopt.errors import DeviceError
from trtopt.records import Backend, Identity

MEASURING = "trtopt_measuring"
"""A host offers 1 of this resource. A measurement takes all of it, and is alone; a build takes a share."""
_SHARE = 0.001

KILLED_FOR_MEMORY = "killed for memory"
"""What a reason begins with where Ray ended its worker because the node was running out of memory."""

_OFFER = f"ray start --address=HEAD:6379 --resources='{{\"{MEASURING}\": 1}}'"


@dataclass(frozen=True)
class Node:
    """A node of the cluster, with what it offers in all."""

    id: str
    name: str
    offers: Mapping[str, float]


@dataclass(frozen=True)
class Needs:
    """What a job takes of its node while it runs."""

    gpus: int
    is_alone: bool

    @property
    def resources(self) -> dict[str, float]:
        """Under the names that Ray has for them."""
        return {"CPU": 1, "GPU": self.gpus, MEASURING: 1.0 if self.is_alone else _SHARE}

    def room_on(self, node: Node) -> int:
        """How many such jobs the node has room for at the same time."""
        taken = ((name, amount) for name, amount in self.resources.items() if amount)
        return min(int(node.offers.get(name, 0) / amount) for name, amount in taken)


@dataclass(frozen=True)
class Refusal:
    """Why a node takes no part; nodes of one host have one name."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


@dataclass(frozen=True)
class Fleet:
    """The nodes that take part, the machine that all of them are, and why the others do not."""

    nodes: tuple[Node, ...] = ()
    identity: Identity | None = None
    refused: tuple[Refusal, ...] = ()


def fleet_of(
    surveyed: Sequence[tuple[Node, Identity | str]],
    backend: Backend,
    gpu_model: str | None,
    identity: Identity | None = None,
) -> Fleet:
    """The nodes that may work together: one TensorRT, one GPU model, one driver.

    The first one with the right TensorRT (and of `gpu_model`, if given) says what the others must be, unless
    the `identity` is known already.
    """
    taken: list[Node] = []
    refused: dict[Refusal, None] = {}
    for node, found in surveyed:
        why = _why_not(found, backend, gpu_model, identity)
        if why is not None:
            refused[Refusal(node.name, why)] = None
        elif isinstance(found, Identity):
            identity = found
            taken.append(node)
    return Fleet(tuple(taken), identity, tuple(refused))


def _why_not(
    found: Identity | str, backend: Backend, gpu_model: str | None, identity: Identity | None
) -> str | None:
    if isinstance(found, str):
        return found
    if found.backend != backend:
        return f"has {found.backend}, this machine has {backend}"
    if gpu_model is not None and gpu_model.casefold() not in found.gpu.casefold():
        return f"has {found.gpu}, not {gpu_model}"
    return difference(found, identity) if identity is not None and found != identity else None


def difference(found: Identity, identity: Identity, others: str = "the others") -> str:
    """In which respects a machine is not like another one, in words; empty: in none."""
    names = ("gpu", "compute_capability", "driver", "cuda")
    unlike = [name for name in names if getattr(found, name) != getattr(identity, name)]
    return ", ".join(
        f"{name.replace('_', ' ')} {getattr(found, name)}, {others} {getattr(identity, name)}"
        for name in unlike
    )


def check_offers(nodes: Sequence[Node], needs: Needs, refused: Sequence[Refusal] = ()) -> None:
    """Find out that a job can run nowhere, before it waits for ever; `refused` as in `Fleet`."""
    if shared := [node.name for node in nodes if node.offers.get(MEASURING, 0) > 1]:
        raise DeviceError(
            f"{', '.join(shared)}: offers more than 1 of {MEASURING}: measurements would disturb each other",
            f"start the node with {_OFFER}",
        )
    if any(map(needs.room_on, nodes)):
        return
    lacking = next(
        name
        for name, amount in needs.resources.items()
        if (amount and not any(node.offers.get(name, 0) >= amount for node in nodes)) or name == MEASURING
    )
    remedy = (
        f"start each node with {_OFFER}" if lacking == MEASURING else f"add a node that offers a {lacking}"
    )
    left_out = "".join(f"; {one.name} takes no part: {one.why}" for one in refused)
    raise DeviceError(f"no node of the Ray cluster offers the resource {lacking}{left_out}", remedy)


def candidates(nodes: Sequence[Node], needs: Needs, failed_on: Collection[str]) -> list[Node]:
    """Where a job may be tried: where it has not been lost yet, if there is such a node."""
    able = [node for node in nodes if needs.room_on(node)]
    return [node for node in able if node.id not in failed_on] or able


def exhausted(doing: str, reasons: Sequence[str], retries: int) -> DeviceError | None:
    """The error for a job that was lost once more often than it may be tried again."""
    if len(reasons) <= retries:
        return None
    times = "once" if len(reasons) == 1 else f"{len(reasons)} times"
    remedy = (
        "use a smaller batch or model, or nodes with more memory"
        if all(reason.startswith(KILLED_FOR_MEMORY) for reason in reasons)
        else "see /tmp/ray/session_latest/logs on those nodes for what befell them, then run the command "
        "again; --retries N tries more often"
    )
    return DeviceError(f"{doing}: lost {times}: {'; '.join(dict.fromkeys(reasons))}", remedy)
