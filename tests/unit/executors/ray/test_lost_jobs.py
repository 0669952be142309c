"""What becomes of jobs that are lost, on a stand-in for Ray whose tasks end as the test has it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from trtopt.errors import DeviceError
from trtopt.executors.placement import MEASURING, Needs, Node
from trtopt.executors.ray import connection, executor as running
from trtopt.workers.jobs import IdentifyJob

JOB = IdentifyJob(backend="onnxruntime")
NODES = tuple(Node(name, name, {"CPU": 8, MEASURING: 1}) for name in ("first", "second"))


class Lost(Exception):
    """Ray's error of a task whose worker is gone."""


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Any], list[list[str]]]]:
    """What a job has come to, and which nodes it was sent to each time; it is lost on some of them."""

    def run(
        lost_on: Sequence[str] = (), silent_on: Sequence[str] = (), retries: int = 2, jobs: int = 1
    ) -> tuple[list[Any], list[list[str]]]:
        sent: list[list[str]] = []

        def send(one: Any, to: Sequence[Node], limit_s: float | None) -> str:
            sent.append([node.name for node in to])
            one.number, one.nodes, one.node = len(sent), frozenset(node.id for node in to), to[0].id
            one.at_work_since = time.monotonic() - (3600 if silent_on else 0)
            return to[0].id if jobs == 1 else str(len(sent))

        def get(ref: str, timeout: float | None = None) -> Any:
            if ref in lost_on:
                raise Lost(f"{ref} is gone")
            return [] if ref == "reports" else ("done", {})

        def finished(refs: Sequence[str], wait_s: float, **_: object) -> list[str]:
            assert next(rounds) < 100, "it waits for ever"
            return [ref for ref in refs if ref not in silent_on]

        rounds = count()
        errors = SimpleNamespace(RayError=Lost, OutOfMemoryError=())
        ray = SimpleNamespace(get=get, cancel=lambda ref, **_: None, exceptions=errors)
        mailbox = SimpleNamespace(take=SimpleNamespace(remote=lambda numbers: "reports"))
        nodes = SimpleNamespace(alive=NODES, look=lambda: None, name_of=str)
        cluster: Any = SimpleNamespace(
            nodes=nodes, mailbox=mailbox, send=send, retries=retries, note=lambda text: None,
            is_cancelled=threading.Event(),
            receive=lambda one, reply, *_: reply if jobs == 1 else len(sent),
        )  # fmt: skip
        for module in (running, connection):
            monkeypatch.setattr(module, "load_ray", lambda: ray)
        monkeypatch.setattr(running, "finished", finished)
        every = [running._Submission(index, JOB, Needs(gpus=0, is_alone=True)) for index in range(jobs)]
        run = running._Run(cluster, every, 60.0, lambda *_: None)
        return list(run.outcomes()), sent

    return run


@pytest.mark.parametrize("how", ["lost_on", "silent_on"])
def test_a_job_that_is_lost_or_long_overdue_is_tried_again_on_another_node(
    outcomes: Callable[..., Any], how: str
) -> None:
    found, sent = outcomes(**{how: ["first"]})
    assert found == [(0, "done")]
    assert sent == [["first", "second"], ["second"]]


def test_a_job_is_given_up_after_its_retries_with_what_befell_it(outcomes: Callable[..., Any]) -> None:
    ((_, error),), sent = outcomes(lost_on=["first", "second"], retries=1)
    assert isinstance(error, DeviceError)
    assert "Lost: first is gone (on first); Lost: second is gone (on second)" in error.problem
    assert len(sent) == 2


def test_nodes_are_at_work_again_before_the_outcomes_of_what_has_ended_are_read(
    outcomes: Callable[..., Any],
) -> None:
    sent_when_read, _ = outcomes(jobs=4)  # of which two run at a time, one on each node
    assert sent_when_read == [(0, 4), (1, 4), (2, 4), (3, 4)]
