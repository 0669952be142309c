"""The nodes of a cluster: which take part, and why the others do not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trtopt.errors import DeviceError
from trtopt.executors.placement import Fleet, Node, fleet_of
from trtopt.executors.ray.library import load_ray
from trtopt.executors.ray.survey import Answer, Survey
from trtopt.printable import counted
from trtopt.records import Backend, Identity

_POLL_S = 1.0
_FIRST_ANSWERS_S = 30.0
"""Jobs begin without nodes that have not answered by then, if there are others."""


class Nodes:
    """The nodes that are there, as last looked at."""

    def __init__(
        self, backend: Backend, gpu_model: str | None, mailbox: Any, home: str, note: Callable[[str], None]
    ) -> None:
        """Ask all nodes what they are; that of this process, `home`, says first what the others must be."""
        self._ray, self._backend, self._gpu_model = load_ray(), backend, gpu_model
        self._home, self._note = home, note
        self._survey = Survey(backend.name, mailbox)
        self._asked: set[str] = set()
        self._answers: dict[str, Answer] = {}
        self._present: dict[str, Node] = {}
        self._lock = threading.Lock()
        self.fleet = Fleet()
        """Which nodes take part, those included that are gone."""
        self.alive: tuple[Node, ...] = ()
        """Those of the fleet that are there."""
        until = time.monotonic() + _FIRST_ANSWERS_S
        self._gather(_POLL_S)
        while self._survey.is_open and not (time.monotonic() > until and self._judged().nodes):
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
        return self._answers[node].node.name if node in self._answers else node

    def look(self) -> None:
        """Find out which nodes are there; new ones are asked what they are, and join once they say it."""
        with self._lock:
            self._gather(0.0)
            self._admit()

    def ask_again(self) -> None:
        """Ask those again whose answers were lost."""
        with self._lock:
            for id_, answer in self._answers.items():
                if answer.is_lost:
                    self._asked.discard(id_)
                    self._answers[id_] = replace(answer, is_lost=False)

    def _gather(self, wait_s: float) -> None:
        """Ask new nodes, and take what has been answered within `wait_s`."""
        self._present = {
            one["NodeID"]: Node(one["NodeID"], one["NodeManagerHostname"], one["Resources"])
            for one in self._ray.nodes()
            if one["Alive"]
        }
        for id_, node in self._present.items():
            if id_ not in self._asked:
                self._asked.add(id_)
                self._survey.ask(node)
        self._answers |= {answer.node.id: answer for answer in self._survey.answers(wait_s)}

    def _judged(self) -> Fleet:
        """What all answers come to."""
        in_order = sorted(self._answers.values(), key=lambda one: (one.node.id != self._home, one.node.id))
        surveyed = [(answer.node, answer.found) for answer in in_order]
        return fleet_of(surveyed, self._backend, self._gpu_model, self.fleet.identity)

    def _admit(self) -> None:
        """Let those take part that may, and say which others do not."""
        before, self.fleet = self.fleet, self._judged()
        for refusal in self.fleet.refused:
            if refusal not in before.refused:
                self._note(f"Ray: node {refusal.name} does not take part: {refusal.why}")
        self.alive = tuple(node for node in self.fleet.nodes if node.id in self._present)
