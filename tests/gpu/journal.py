"""A pytest plugin: each test's beginning and outcome, a line of JSON at once, so that a kill loses nothing.

`run_shards.py` names the file in TRTOPT_TEST_JOURNAL and loads this with `-p journal`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

import pytest

_MESSAGE_CHARACTERS = 4000
_PR_SET_PDEATHSIG = 1


class Journal:
    """Appends to the file; a line is written whole or, by a kill, not at all."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seconds: dict[str, float] = {}
        self._worst: dict[str, tuple[str, str]] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported counts as a test that failed."""
        if report.failed:
            self._write(test=report.nodeid, outcome="failed", seconds=0.0, message=report.longreprtext)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            self._write(collected=[item.nodeid for item in session.items])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(test=nodeid, outcome="begun")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        self._seconds[test] = self._seconds.get(test, 0.0) + report.duration
        if report.outcome != "passed":
            self._worst.setdefault(test, (report.outcome, report.longreprtext or str(report.longrepr)))
        if report.when == "teardown":
            outcome, message = self._worst.get(test, ("passed", ""))
            self._write(test=test, outcome=outcome, seconds=round(self._seconds[test], 2), message=message)

    def _write(self, **line: Any) -> None:
        if message := line.pop("message", ""):
            line["message"] = message[-_MESSAGE_CHARACTERS:]
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def pytest_configure(config: pytest.Config) -> None:
    """Write to the journal, and die with the runner: nobody else would bound what hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    config.pluginmanager.register(Journal(os.environ["TRTOPT_TEST_JOURNAL"]), "trtopt-journal")
