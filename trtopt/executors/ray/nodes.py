"""The nodes of a cluster: which take part, and why the others do not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from trtopt.errors import DeviceError
from trtopt.executors.placement import Fleet, Node, fleet_of
from trtopt.executors.ray.connection import finished, load_ray, on_node, reason_of
from trtopt.printable import counted
from trtopt.records import Backend, Identity
from trtopt.version import __version__
from trtopt.workers.worker import Done, Failure

_POLL_S = 1.0
_FIRST_ANSWERS_S = 30.0
"""Jobs begin without nodes that have not answered by then, if there are others."""
_ANSWER_S = 120.0
"""A node that says nothing for so long takes no part."""
_SHOW_GPUS = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
"""Some versions of Ray hide GPUs from tasks that take none."""


class Nodes:
    """The nodes that are there, as last looked at."""

    def __init__(
        self, backend: Backend, gpu_model: str | None, home: str, note: Callable[[str], None]
    ) -> None:
        """Ask all nodes what they are; that of this process, `home`, says first what the others must be."""
        self._ray, self._backend, self._gpu_model = load_ray(), backend, gpu_model
        self._home, self._note = home, note
        self._question = self._ray.remote(_question(backend.name))
        self._open: dict[Any, tuple[Node, float]] = {}
        """Nodes that have been asked, and until when each may answer."""
        self._answers: dict[str, tuple[Node, Identity | str]] = {}
        """What each node is, or why that cannot be found out."""
        self._lost: set[str] = set()
        """Those whose answers were lost on the way."""
        self._present: dict[str, Node] = {}
        self._lock = threading.Lock()
        self.fleet = Fleet()
        """Which nodes take part, those included that are gone."""
        self.alive: tuple[Node, ...] = ()
        """Those of the fleet that are there."""
        until = time.monotonic() + _FIRST_ANSWERS_S
        self._gather(_POLL_S)
        while self._open and not (time.monotonic() > until and self._judged().nodes):
            self._gather(_POLL_S)
        self._admit()
        if not self.alive:
            lacks = "; ".join(map(str, self.fleet.refused))
            raise DeviceError(
                f"no node of the Ray cluster can take part: {lacks}",
                "install the same trtopt and TensorRT on all nodes, on one GPU model: see --gpu-model",
            )
        note(f"Ray: jobs run on {counted(len(self.alive), 'node')}, GPU model {self.identity.gpu}")

    @property
    def identity(self) -> Identity:
        """The machine that all nodes are."""
        assert self.fleet.identity is not None
        return self.fleet.identity

    def name_of(self, node: str) -> str:
        """The host name of the node with an id."""
        return self._answers[node][0].name if node in self._answers else node

    def look(self) -> None:
        """Find out which nodes are there; new ones are asked what they are, and join once they say it."""
        with self._lock:
            self._gather(0.0)
            self._admit()

    def ask_again(self) -> None:
        """Ask those whose answers were lost."""
        with self._lock:
            while self._lost:
                self._ask(self._answers[self._lost.pop()][0])

    def _gather(self, wait_s: float) -> None:
        """Ask new nodes, each on itself, and take what has been answered, or not in time, within `wait_s`."""
        self._present = {
            one["NodeID"]: Node(one["NodeID"], one["NodeManagerHostname"], one["Resources"])
            for one in self._ray.nodes()
            if one["Alive"]
        }
        asked = self._answers.keys() | {node.id for node, _ in self._open.values()}
        for id_ in self._present.keys() - asked:
            self._ask(self._present[id_])
        for ref in finished(list(self._open), wait_s):
            node, _ = self._open.pop(ref)
            self._answers[node.id] = node, self._answer(node, ref)
        for ref, (node, until) in list(self._open.items()):
            if until < time.monotonic():
                self._ray.cancel(ref, force=True)
                del self._open[ref]
                self._lost.add(node.id)
                self._answers[node.id] = node, f"does not answer within {_ANSWER_S:g} s"

    def _ask(self, node: Node) -> None:
        shown = _SHOW_GPUS if node.offers.get("GPU") else None
        ref = on_node(self._question, node.id, runtime_env=shown).remote()
        self._open[ref] = node, time.monotonic() + _ANSWER_S

    def _answer(self, node: Node, ref: Any) -> Identity | str:
        try:
            theirs, identified = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            if not isinstance(error, self._ray.exceptions.RayTaskError):
                self._lost.add(node.id)
            return reason_of(error)
        if theirs != __version__:
            return f"has trtopt {theirs}, this machine has trtopt {__version__}"
        outcome = msgspec.json.decode(identified, type=Done[Identity] | Failure)
        return outcome.problem if isinstance(outcome, Failure) else outcome.result

    def _judged(self) -> Fleet:
        """What all answers come to."""
        in_order = sorted(self._answers.values(), key=lambda one: (one[0].id != self._home, one[0].id))
        return fleet_of(in_order, self._backend, self._gpu_model, self.fleet.identity)

    def _admit(self) -> None:
        """Let those take part that may, and say which others do not."""
        before, self.fleet = self.fleet, self._judged()
        for refusal in self.fleet.refused:
            if refusal not in before.refused:
                self._note(f"Ray: node {refusal.name} does not take part: {refusal.why}")
        self.alive = tuple(node for node in self.fleet.nodes if node.id in self._present)


def _question(backend: str) -> Callable[[], tuple[str, bytes]]:
    """What a node is asked: its trtopt, and what it is if that is this one.

    A function within one travels whole: by its name another trtopt might lack it, or have another.
    """
    here = __version__

    def answer() -> tuple[str, bytes]:
        from pkgutil import resolve_name

        there = resolve_name("trtopt.version:__version__")
        return there, resolve_name("trtopt.executors.ray.node:identify")(backend) if there == here else b""

    return answer
