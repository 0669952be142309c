"""Engines of a build folder, and the workers that run them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from trtopt.device.api import Target
from trtopt.device.backends import open_target
from trtopt.device.memory_check import require_memory
from trtopt.errors import ClosedError, DataError, DeviceMemoryError, TrtoptError, UsageError, WorkerError
from trtopt.files.manifests import check_plugins
from trtopt.records import BatchPolicy, Record
from trtopt.serving.engine_catalogue import Catalogue, Engine, Part
from trtopt.serving.load_folder import Source, opening_of
from trtopt.serving.pool_worker import Outputs, Worker

BOUND_BYTES = 2 << 30

_HARMLESS = (DataError, UsageError, DeviceMemoryError)
"""What a worker survives: nothing has been enqueued, or it ended with the error."""


class PoolUsage(Record, frozen=True, kw_only=True):
    """The state of a pool.

    `prepared` counts engines that are ready at some shapes, over all workers, and `graphs` those of them
    with a CUDA graph; `prepared_bytes` is their device memory: inputs, outputs, and activations where the
    engine reports them. `bound_bytes` bounds it, but each worker keeps one, however large. `graph_refused`
    says why there is no graph, if one was tried. `workers` counts those left; `replaced` those that failed
    and were replaced.
    """

    workers: int
    replaced: int
    prepared: int
    graphs: int
    evicted: int
    prepared_bytes: int
    bound_bytes: int
    graph_refused: str | None


class EnginePool:
    """Runs rows on whichever of its engines suits their number; any thread may call it.

    Each of its `workers` has a stream and contexts of its own, and one thread at a time uses it. `policy` is
    the plan's batching policy, which a `DynamicBatcher` uses; None without a plan.
    """

    def __init__(
        self,
        target: Target,
        sources: Iterable[Source],
        *,
        workers: int = 1,
        bound_bytes: int = BOUND_BYTES,
        graphs: bool = True,
        policy: BatchPolicy | None = None,
    ) -> None:
        if workers < 1 or bound_bytes < 1:
            raise UsageError(
                f"a pool of {workers} workers in {bound_bytes} bytes cannot run anything",
                "give it one worker and some memory at least",
            )
        self.policy = policy
        self._process = os.getpid()
        self._device = target.device
        self._bound_bytes, self._graphs, self.workers = bound_bytes, graphs, workers
        self._changed = threading.Condition()
        self._idle: list[Worker] = []
        self._alive: list[Worker] = []
        self._replaced = 0
        self._is_closed = False
        self._target, self._sessions = ExitStack(), ExitStack()
        self._target.callback(target.close)
        try:
            engines = [self._load(target, source) for source in sources]
            self.catalogue = Catalogue(engines)
            with self._device.adopt_thread():
                for _ in range(workers):
                    self._idle.append(self._new_worker())
                    self._alive.append(self._idle[-1])
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        workers: int | None = None,
        bound_bytes: int = BOUND_BYTES,
        graphs: bool = True,
        trust: Sequence[str] = (),
    ) -> EnginePool:
        """Load the engines of a build folder or plan, with the backend that they were built with.

        By `bench.json` in the folder, or what a plan has measured, batches are padded up or split as is
        cheaper. Without, they are padded up to the smallest engine that holds them, as they are where that
        one, or its profile, is not among what was measured.

        Args:
            path: the folder that `trtopt build` made, or the file that `trtopt plan` did.
            workers: how many batches run at a time [default: the plan's; 1 for a build folder]. A
                second one copies and waits while the first computes.
            bound_bytes: the most device memory for what is prepared, shared by the workers equally: inputs,
                outputs and activations. A worker keeps one engine prepared, however large.
            graphs: whether to capture CUDA graphs, where the device has them.
            trust: plugin libraries that engines need, by path: native code, which is not loaded otherwise.

        Raises:
            ArtifactError: no build folder or plan, an engine that is missing or not the listed one, or
                a plugin that is not trusted.
            IncompatibleEngineError: built by another version, or for another GPU.
            DeviceMemoryError: there is no room for an engine.
            NoGpuError, BackendMissingError: what the engines were built with cannot run here.
            UsageError: inputs or outputs without a batch axis in front.
        """
        opening = opening_of(Path(path))
        check_plugins(opening.engines, trust, "trust=")
        plan = opening.engines[0].plan
        target = open_target(plan.backend.name, plan.settings.plugins, shares_cores=True)
        return cls(
            target,
            opening.sources(),
            workers=opening.workers if workers is None else workers,
            bound_bytes=bound_bytes,
            graphs=graphs,
            policy=opening.policy,
        )

    def _load(self, target: Target, source: Source) -> Engine:
        parts = {"engine": len(source.content)}  # its weights are in its file
        require_memory(
            source.artifact.path, parts, self._device.device_memory(), "serve with fewer or smaller engines"
        )
        session = target.load(source.content)
        self._sessions.callback(session.close)
        return Engine(session, source.artifact, source.offers)

    def _new_worker(self) -> Worker:
        bound_bytes = self._bound_bytes // self.workers
        return Worker(self._device, self.catalogue, bound_bytes=bound_bytes, graphs=self._graphs)

    @property
    def largest_batch(self) -> int:
        """The largest batch that one of the engines runs."""
        return max(offer.high for engine in self.catalogue.engines for offer in engine.offers)

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that opened it: no thread, no device came along."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raises ClosedError if this is another process than the one that opened it."""
        if os.getpid() != self._process:  # for every request
            raise ClosedError(
                f"the pool was opened in process {self._process}, of which this one is a fork: neither "
                "threads nor the device come along",
                "open a pool in each process, after the fork",
            )

    def run(self, inputs: object) -> Outputs:
        """Run rows of any number and wait for their outputs.

        Args:
            inputs: a NumPy array [rows, …] for each input by its name, or the array itself if there is but
                one input.

        Returns:
            Every output as [rows, …], a NumPy array of the caller's own.

        Raises:
            DataError: names, types or shapes that no engine takes, or values that the model refuses.
            WorkerError: the worker failed; another one has taken its place, or none is left.
            ClosedError: the pool has been closed, or was opened before this process was forked.
        """
        return self.run_parts([self.catalogue.part(inputs)])[0]

    def run_parts(self, parts: Sequence[Part]) -> list[Outputs]:
        """Run parts of one key together; the outputs of each. Raises as `run` does."""
        worker = self._borrow()
        try:
            with self._device.adopt_thread():
                outputs = worker.run(parts)
        except _HARMLESS:
            self._give_back(worker)
            raise
        except BaseException as error:
            self._replace(worker)
            if not isinstance(error, Exception):
                raise
            problem = error.problem if isinstance(error, TrtoptError) else f"{type(error).__name__}: {error}"
            raise WorkerError(
                f"the worker failed: {problem}",
                f"try again: {len(self._alive)} of {self.workers} workers are left",
            ) from error
        self._give_back(worker)
        return outputs

    def _borrow(self) -> Worker:
        self.check_process()
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._is_closed or not self._alive)
            if self._is_closed:
                raise ClosedError("the pool has been closed", "open another one")
            if not self._alive:
                raise WorkerError(
                    "no worker is left: each has failed and could not be replaced",
                    "see whether nvidia-smi shows a healthy GPU, and start the process again",
                )
            return self._idle.pop()

    def _give_back(self, worker: Worker) -> None:
        with self._changed:
            self._idle.append(worker)
            self._changed.notify()

    def _replace(self, failed: Worker) -> None:
        """Put a new worker in its place, if the device still gives one."""
        new: Worker | None = None
        with suppress(Exception), self._device.adopt_thread():
            with suppress(Exception):  # what is broken may refuse to be closed
                failed.close()
            new = self._new_worker()
        with self._changed:
            self._alive.remove(failed)
            if new is not None:
                self._alive.append(new)
                self._idle.append(new)
                self._replaced += 1
            self._changed.notify_all()

    def usage(self) -> PoolUsage:
        """What it holds, and has done, now."""
        with self._changed:
            workers, replaced = list(self._alive), self._replaced
        refused = next((worker.graph_refused for worker in workers if worker.graph_refused), None)
        prepared = [one for worker in workers for one in worker.prepared]
        return PoolUsage(
            workers=len(workers),
            replaced=replaced,
            prepared=len(prepared),
            graphs=sum(one.has_graph for one in prepared),
            evicted=sum(worker.evicted for worker in workers),
            prepared_bytes=sum(one.nbytes for one in prepared),
            bound_bytes=self._bound_bytes,
            graph_refused=refused,
        )

    def close(self) -> None:
        """Wait for what is running, then release everything. A second call does nothing.

        In a fork of the process that opened it there is nothing to release.
        """
        if self.is_forked:
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._idle) == len(self._alive))
            workers, self._idle, self._alive = self._alive, [], []
        with self._target, ExitStack() as adopted, self._sessions, ExitStack() as closing:
            for worker in workers:
                closing.callback(worker.close)
            adopted.enter_context(self._device.adopt_thread())  # whose failure keeps nothing open

    def __enter__(self) -> EnginePool:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
