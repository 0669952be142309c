"""The executor whose jobs are Ray tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence

from trtopt.device.building import EngineBuilder
from trtopt.errors import TrtoptError
from trtopt.executors.api import shares_a_host
from trtopt.executors.placement import Needs, check_offers
from trtopt.executors.ray.cluster import Cluster
from trtopt.executors.ray.courier import Courier, Submission
from trtopt.executors.ray.library import load_ray
from trtopt.executors.ray.mail import Mail
from trtopt.executors.ray.nodes import Nodes
from trtopt.executors.ray.run import Run
from trtopt.executors.ray.task import run_parcel
from trtopt.workers.jobs import Job
from trtopt.workers.protocol import Result
from trtopt.workers.supervisor import OnProgress


class RayExecutor:
    """Runs jobs on the nodes of a Ray cluster that have this machine's trtopt and TensorRT.

    Several threads may submit jobs at the same time.
    """

    has_many_hosts = True

    def __init__(
        self,
        builder: EngineBuilder,
        *,
        gpu_model: str | None = None,
        retries: int = 2,
        note: Callable[[str], None] = lambda text: None,
        work: Callable[..., tuple[bytes, dict[str, bytes]]] = run_parcel,
    ) -> None:
        """Look at the nodes of the cluster that this process is connected to; `work` is what a task runs."""
        home = load_ray().get_runtime_context().get_node_id()
        mail = Mail(home)
        self.nodes = Nodes(builder.backend, gpu_model, mail.mailbox, home, note)
        self._cluster = Cluster(self.nodes, mail)
        self._courier = Courier(self._cluster, builder, work, note)
        self._retries, self._note = retries, note
        self._is_cancelled = threading.Event()

    @property
    def at_once(self) -> int:
        """See `Executor.at_once`: a job per GPU, or per node where jobs need no GPU."""
        places = (int(node.offers.get("GPU", 0)) if self._gpus else 1 for node in self.nodes.alive)
        return max(1, sum(places))

    def cancel(self) -> None:
        """See `Executor.cancel`."""
        self._is_cancelled.set()

    def require_measuring(self) -> None:
        """See `Executor.require_measuring`."""
        self._check(Needs(self._gpus, is_alone=True))

    def run_all_jobs(
        self, jobs: Sequence[Job], *, limit_s: float | None = None, on_progress: OnProgress
    ) -> Generator[tuple[int, Result | TrtoptError]]:
        """See `Executor.run_all_jobs`.

        A job that is lost with its node or its Ray worker is tried again on another node.
        """
        self.nodes.ask_again()
        self.nodes.look()
        submissions = [
            Submission(index, job, Needs(self._gpus, not shares_a_host(job)))
            for index, job in enumerate(jobs)
        ]
        for needs in {one.needs for one in submissions}:
            self._check(needs)
        run = Run(
            self._cluster,
            self._courier,
            submissions,
            limit_s=limit_s,
            retries=self._retries,
            on_progress=on_progress,
            note=self._note,
        )
        return run.outcomes(self._is_cancelled)

    def _check(self, needs: Needs) -> None:
        """Find out that no node of the fleet, present or gone, can run such jobs."""
        check_offers(self.nodes.fleet.nodes, needs, self.nodes.fleet.refused)

    @property
    def _gpus(self) -> int:
        """How many a job takes: none where the backend runs on the processor."""
        return int(self.nodes.identity.compute_capability is not None)
