"""What the nodes of a cluster are: tasks ask each of them, and nothing waits for one that is silent."""

from __future__ import annotations

import logging
import pkgutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trtopt.errors import TrtoptError
from trtopt.executors.placement import Node
from trtopt.executors.ray.library import load_ray, on_node, reason_of
from trtopt.executors.ray.task import run_parcel
from trtopt.executors.transfer import Packed, pack, unpack
from trtopt.files.bounded_reading import sha256_of
from trtopt.records import Identity
from trtopt.version import __version__
from trtopt.workers.protocol import Identified, IdentifyJob

_ANSWER_S = 120.0
"""A node that says nothing for so long takes no part."""
_IDENTIFY_S = 60.0
_SHOW_GPUS = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
"""Some versions of Ray hide GPUs from tasks that take none."""


@dataclass
class _Question:
    """What a node has been asked: which trtopt it has, then what it is."""

    node: Node
    is_about_version: bool
    until: float


@dataclass(frozen=True)
class Answer:
    """What a node is, or why that cannot be found out; `is_lost`: it may be asked again."""

    node: Node
    found: Identity | str
    is_lost: bool = False


class Survey:
    """Asks nodes.

    Versions come first, found by Python alone: another trtopt may take another task.
    """

    def __init__(self, backend: str, mailbox: Any) -> None:
        self._ray, self._mailbox = load_ray(), mailbox
        self._ask_version = self._ray.remote(pkgutil.resolve_name)
        self._identify = self._ray.remote(run_parcel)
        self._packed: Packed = pack(IdentifyJob(backend=backend), limit_s=_IDENTIFY_S, hash_of=sha256_of)
        self._open: dict[Any, _Question] = {}

    def ask(self, node: Node) -> None:
        """Ask a node; `answers` has the answer later."""
        ref = self._on(node, self._ask_version).remote("trtopt.version:__version__")
        self._open[ref] = _Question(node, is_about_version=True, until=time.monotonic() + _ANSWER_S)

    @property
    def is_open(self) -> bool:
        """Whether answers are still to come."""
        return bool(self._open)

    def answers(self, wait_s: float) -> Iterator[Answer]:
        """What has been answered, or not in time, within `wait_s`."""
        if not self._open:
            return
        refs = list(self._open)
        done, _ = self._ray.wait(refs, num_returns=1, timeout=wait_s)
        if done:
            done, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in done:
            answer = self._answer(ref, self._open.pop(ref))
            if answer is not None:
                yield answer
        for ref in [ref for ref, one in self._open.items() if one.until < time.monotonic()]:
            self._ray.cancel(ref, force=True)
            silent = self._open.pop(ref).node
            yield Answer(silent, f"does not answer within {_ANSWER_S:g} s", is_lost=True)

    def _answer(self, ref: Any, question: _Question) -> Answer | None:
        """A node's last answer; None: it is asked the second question now."""
        node = question.node
        try:
            answer = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            is_lost = not isinstance(error, self._ray.exceptions.RayTaskError)
            return Answer(node, reason_of(error), is_lost=is_lost)
        if not question.is_about_version:
            return Answer(node, self._identity(*answer))
        if answer != __version__:
            return Answer(node, f"has trtopt {answer}, this machine has trtopt {__version__}")
        ref = self._on(node, self._identify).remote(self._packed.parcel, {}, self._mailbox, 0, logging.ERROR)
        self._open[ref] = _Question(node, is_about_version=False, until=time.monotonic() + _ANSWER_S)
        return None

    def _identity(self, reply: bytes, contents: dict[str, bytes]) -> Identity | str:
        try:
            outcome = unpack(self._packed, reply, contents).outcome
        except TrtoptError as error:
            return error.problem
        return outcome.identity if isinstance(outcome, Identified) else getattr(outcome, "problem", "unknown")

    def _on(self, node: Node, task: Any) -> Any:
        """A question on this very node, which sees its GPUs."""
        shown = _SHOW_GPUS if node.offers.get("GPU") else None
        return on_node(task, node.id, runtime_env=shown)
