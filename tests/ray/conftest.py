"""Everything here runs on a real Ray cluster of two nodes, on this host; without Ray it is skipped.

Ray listens on the host's own address whatever it is told. So these tests run only where there is none: in a
network namespace with nothing but loopback, as `make test-ray` makes one.
"""

import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", "t" * 64)  # this host's own, for as long as the tests run
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_DISABLE_IMPORT_WARNING"] = "1"

OBJECT_STORE_BYTES = 80_000_000
HEALTH_CHECKS = {"health_check_period_ms": 500, "health_check_initial_delay_ms": 1000}
"""A killed node is missed after five checks, which Ray makes every 3 s by default: tests wait for it."""


@pytest.fixture(scope="session", autouse=True)
def _only_loopback() -> None:
    names = {name for _, name in socket.if_nameindex()}
    if names != {"lo"}:
        pytest.skip("Ray would listen on this host's network: run `make test-ray`")


class TwoNodes:
    """A cluster of a head, which measures too, and another node, which can be killed."""

    def __init__(self) -> None:
        cluster_utils = pytest.importorskip(
            "ray.cluster_utils", reason="needs Ray: pip install 'trtopt[ray]'"
        )
        self._offers: dict[str, Any] = {
            "num_cpus": 1,
            "object_store_memory": OBJECT_STORE_BYTES,
            "resources": {"trtopt_measuring": 1},
        }
        self._cluster = cluster_utils.Cluster(
            initialize_head=True,
            head_node_args=self._offers | {"include_dashboard": False, "_system_config": HEALTH_CHECKS},
        )
        self.address: str = self._cluster.address
        self._second: Any = None
        self._removed: set[str] = set()

    def add(self) -> None:
        """Have two nodes, again, and none that is dead and not yet missed."""
        deadline = time.monotonic() + 60
        while self._nodes() & self._removed:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        if self._second is None:
            self._second = self._cluster.add_node(**self._offers)

    @contextmanager
    def another(self, *, num_cpus: int = 1, num_gpus: int = 0, **environment: str) -> Iterator[str]:
        """One more node, with variables of its own; its id."""
        offers = self._offers | {"num_cpus": num_cpus, "num_gpus": num_gpus}
        node = self._cluster.add_node(**offers, env_vars=environment)
        try:
            yield node.node_id
        finally:
            self._remove(node)

    @contextmanager
    def with_memory_of(self, file: Path) -> Iterator[str]:
        """One more node, which reads `file` where others read /proc/meminfo; its id."""
        bound = ["unshare", "--mount", "sh", "-ec", 'mount --bind "$0" /proc/meminfo; exec "$@"', str(file)]
        if subprocess.run([*bound, "true"], check=False).returncode != 0:
            pytest.skip("no file can be mounted over /proc/meminfo here")
        start = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", "--block"]
        offers = [
            f"--address={self.address}",
            f"--num-cpus={self._offers['num_cpus']}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            f"--memory={OBJECT_STORE_BYTES}",
            f"--resources={json.dumps(self._offers['resources'])}",
        ]
        before = self._nodes()
        with subprocess.Popen([*bound, *start, *offers], stdout=subprocess.DEVNULL) as process:
            try:
                deadline = time.monotonic() + 60
                while not (new := self._nodes() - before):
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                self._removed |= new
                yield new.pop()
            finally:
                process.terminate()

    def _nodes(self) -> set[str]:
        """The ids of those that are alive."""
        return {one["NodeID"] for one in self._cluster.global_state.node_table() if one["Alive"]}

    def kill(self) -> None:
        """Kill the second node, as a loss of power would."""
        self._remove(self._second)
        self._second = None

    def _remove(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)
        self._removed.add(node.node_id)

    def stop(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def started(_only_loopback: None) -> Iterator[TwoNodes]:
    cluster = TwoNodes()
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(started: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> TwoNodes:
    """Two nodes, which `--executor ray` finds; here it waits for every node's answer.

    On a busy host a new one takes longer than the 30 s after which jobs begin without it.
    """
    started.add()
    monkeypatch.setattr("trtopt.executors.ray.nodes._FIRST_ANSWERS_S", math.inf)
    monkeypatch.setenv("RAY_ADDRESS", started.address)
    return started
