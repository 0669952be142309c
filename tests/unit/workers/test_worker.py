"""A worker reports how its job ended."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from trtopt.errors import DeviceError
from trtopt.measure.engine import DescribeJob
from trtopt.processes.messages import frame, receive, send
from trtopt.workers import worker
from trtopt.workers.worker import Failure, ending_of


def test_a_job_without_host_memory_fails_as_a_device_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(job: object, progress: object) -> None:
        raise MemoryError

    monkeypatch.setattr(worker, "relay", lambda level, report: nullcontext())
    monkeypatch.setattr(worker, "type_of", lambda job: SimpleNamespace(run=run))
    job = DescribeJob(path="e.engine", sha256="", backend="onnxruntime")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, frame(job))
        worker.main(theirs, "30")
        ended = receive(ours, ending_of(job))
    assert isinstance(ended, Failure)
    assert isinstance(ended.error, DeviceError)
