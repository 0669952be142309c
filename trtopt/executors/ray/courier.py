"""Jobs on their way: packed and sent as tasks, and what has come back as results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

from trtopt.builder.engine import BuildJob
from trtopt.builder.timing_cache import identity_of
from trtopt.device.building import EngineBuilder
from trtopt.errors import TrtoptError
from trtopt.executors.placement import MEASURING, Needs, Node, difference
from trtopt.executors.ray.cluster import Cluster
from trtopt.executors.ray.library import NODE_LABEL, load_ray
from trtopt.executors.ray.object_store import Stored
from trtopt.executors.timings import Timings
from trtopt.executors.transfer import Packed, pack, unpack
from trtopt.logs import LOG
from trtopt.workers.jobs import Job, git_revision, type_of
from trtopt.workers.protocol import Benched, Built, Interleaved, Result


@dataclass
class Submission:
    """A job, from its first submission to its outcome; it has a new number each time that it is sent."""

    index: int
    job: Job
    needs: Needs
    number: int = 0
    nodes: frozenset[str] = frozenset()
    """Where it may run, this time."""
    node: str | None = None
    """Where it runs."""
    at_work_since: float | None = None
    """When its files were there, by the monotonic clock; None: before that, and once it has its result."""
    reasons: list[str] = field(default_factory=list)
    """Why it was lost, each time."""
    failed_on: set[str] = field(default_factory=set)
    packed: Packed = field(default_factory=Packed)
    timings: Timings | None = None
    stored: list[Stored] = field(default_factory=list)

    @property
    def doing(self) -> str:
        """What it does, in words."""
        return type_of(self.job).doing(self.job)


class Courier:
    """Sends submissions; `work` is what a task runs."""

    def __init__(
        self,
        cluster: Cluster,
        builder: EngineBuilder,
        work: Callable[..., tuple[bytes, dict[str, bytes]]],
        note: Callable[[str], None],
    ) -> None:
        self._cluster, self._builder = cluster, builder
        self._git_revision = git_revision()
        self._here = identity_of(builder.backend, builder.device)
        self._task = load_ray().remote(work)
        if builder.uses_timing_cache and (
            unlike := difference(cluster.nodes.identity, self._here, "this machine")
        ):
            note(f"Ray: timing caches are neither read nor saved: nodes have {unlike}")
        self._numbers = count(1)

    def send(self, one: Submission, nodes: list[Node], limit_s: float | None) -> Any:
        """Send a job to one of `nodes`; returns Ray's reference to its result."""
        if not one.packed.parcel:
            self._pack(one, limit_s)
        mail = self._cluster.mail
        one.number, one.node, one.at_work_since = next(self._numbers), None, None
        one.nodes = frozenset(node.id for node in nodes)
        one.stored = [self._cluster.store.store(sha256, file) for sha256, file in one.packed.files.items()]
        mail.expect(one.number)
        refs = dict(zip(one.packed.files, (stored.ref for stored in one.stored), strict=True))
        return self._task.options(
            num_cpus=one.needs.cpus,
            num_gpus=one.needs.gpus,
            resources={MEASURING: 1.0} if one.needs.is_alone else {},
            max_retries=0,
            label_selector={NODE_LABEL: f"in({','.join(sorted(one.nodes))})"},
        ).remote(one.packed.parcel, refs, mail.mailbox, one.number, LOG.getEffectiveLevel())

    def _pack(self, one: Submission, limit_s: float | None) -> None:
        job = one.job
        if isinstance(job, BuildJob) and self._builder.uses_timing_cache and self._is_like_this_machine():
            one.timings = Timings(self._builder, job)
        one.packed = pack(
            job,
            limit_s=limit_s,
            hash_of=self._cluster.store.hash_of,
            timings=one.timings.file if one.timings else None,
            has_timings=one.timings is not None,
        )

    def _is_like_this_machine(self) -> bool:
        """Whether this machine's timings are of use to the nodes."""
        return self._here == self._cluster.nodes.identity

    def received(
        self, one: Submission, reply: bytes, contents: dict[str, bytes], beside: tuple[str, ...]
    ) -> Result | TrtoptError:
        """A submission's outcome, with what only the driver knows; its files are in the user's folder."""
        arrived = unpack(one.packed, reply, contents)
        result = arrived.outcome
        if isinstance(result, Built) and one.timings is not None:
            return Built(engine=one.timings.add(result.engine, arrived.timings))
        if isinstance(result, Benched | Interleaved):
            return _with_environment(
                result, node=arrived.node, beside=beside, git_revision=self._git_revision
            )
        return result


def _with_environment(result: Benched | Interleaved, **known: Any) -> Benched | Interleaved:
    """A measurement whose environment says what only the driver knows."""
    replace = msgspec.structs.replace
    if isinstance(result, Benched):
        return replace(result, environment=replace(result.environment, **known))
    return Interleaved(run=replace(result.run, environment=replace(result.run.environment, **known)))
