"""The sampling loop: keeps streams busy and collects their queries until a criterion is met."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from trtopt.device.api import Device
from trtopt.errors import DeviceError
from trtopt.measure.loop.inference_stream import InferenceStream, InFlightQuery, Query
from trtopt.records import STAGES, Samples

Finished = tuple[int, Query]
"""A query and the number of the inference stream that ran it."""


class Criterion(Protocol):
    """Gets each query's latency in milliseconds and decides when a pass may end."""

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""

    def is_finished(self, elapsed_s: float) -> bool:
        """Whether the pass may end; called once per query, `elapsed_s` after the first was enqueued."""


class Until:
    """Ends when both a count and a time are reached."""

    def __init__(self, min_count: int, min_s: float = 0.0) -> None:
        self._left, self._min_s = min_count, min_s

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""
        self._left -= 1

    def is_finished(self, elapsed_s: float) -> bool:
        """See `Criterion`."""
        return self._left <= 0 and elapsed_s >= self._min_s


def sample(device: Device, inference_streams: Sequence[InferenceStream], criterion: Criterion) -> Samples:
    """Keep every slot of every stream busy until the criterion is met, then let all of them finish."""
    began_s = device.now()
    finished: list[Finished] = []
    drive(device, inference_streams, criterion, finished)
    return as_samples(finished, began_s)


def drive(
    device: Device,
    inference_streams: Sequence[InferenceStream],
    criterion: Criterion,
    finished: list[Finished],
    *,
    timed: bool = False,
) -> None:
    """As `sample`, from one host thread or one per inference stream, by their contract.

    `timed` queries have their stages timed, see `InFlightQuery.start`.
    Queries come into `finished` in the order in which they were enqueued; those that had finished when a
    query failed are there too. Threads share Python's interpreter lock: they enqueue one at a time, and wait
    for the device at the same time.
    """
    try:
        if inference_streams[0].contract.threads == "one" or len(inference_streams) == 1:
            _keep_busy(device, inference_streams, 0, criterion, finished, timed)
        else:
            _keep_busy_in_threads(device, inference_streams, criterion, finished, timed)
    finally:
        finished.sort(key=lambda lane_and_query: lane_and_query[1].start_s)


def _keep_busy(
    device: Device,
    inference_streams: Sequence[InferenceStream],
    first_number: int,
    criterion: Criterion,
    finished: list[Finished],
    timed: bool,
) -> None:
    """The criterion is evaluated between queries: with one query in flight its work is never timed."""
    if sum(len(inference_stream.slots) for inference_stream in inference_streams) == 1:
        _one_at_a_time(device, inference_streams[0].slots[0], first_number, criterion, finished, timed)
        return
    began_s = device.now()
    rounds = _round_robin(inference_streams, first_number)
    while True:
        number, slot = next(rounds)
        if slot.busy:
            query = slot.finish()
            finished.append((number, query))
            criterion.add((query.end_s - query.start_s) * 1e3)
        if criterion.is_finished(device.now() - began_s):
            break
        slot.start(timed=timed)
    for _ in range(sum(len(inference_stream.slots) for inference_stream in inference_streams)):
        number, slot = next(rounds)
        if slot.busy:
            finished.append((number, slot.finish()))


def _one_at_a_time(
    device: Device,
    slot: InFlightQuery,
    number: int,
    criterion: Criterion,
    finished: list[Finished],
    timed: bool,
) -> None:
    """Little code between queries, too: what it evicts from the caches the next query waits for."""
    run, now = slot.run, device.now
    began_s = now()
    while not criterion.is_finished(now() - began_s):
        query = run(timed=timed)
        finished.append((number, query))
        criterion.add((query.end_s - query.start_s) * 1e3)


def _round_robin(
    inference_streams: Sequence[InferenceStream], first_number: int
) -> Iterator[tuple[int, InFlightQuery]]:
    depth = len(inference_streams[0].slots)
    while True:
        for slot in range(depth):
            for number, inference_stream in enumerate(inference_streams, first_number):
                yield number, inference_stream.slots[slot]


class _Shared:
    """A criterion for several threads; once it is met, or given up, it is so for all of them."""

    def __init__(self, criterion: Criterion) -> None:
        self._criterion = criterion
        self._guard = threading.Lock()
        self._is_met = self._is_given_up = (
            False  # apart: giving up takes no lock, and must not be overwritten
        )

    @property
    def is_over(self) -> bool:
        """Whether no thread should begin."""
        return self._is_met or self._is_given_up

    def add(self, latency_ms: float) -> None:
        """One more query has finished."""
        with self._guard:
            self._criterion.add(latency_ms)

    def is_finished(self, elapsed_s: float) -> bool:
        """Whether the pass may end."""
        with self._guard:
            self._is_met = self._is_met or self._criterion.is_finished(elapsed_s)
            return self.is_over

    def give_up(self) -> None:
        """End it for all."""
        self._is_given_up = True


def _keep_busy_in_threads(
    device: Device,
    inference_streams: Sequence[InferenceStream],
    criterion: Criterion,
    finished: list[Finished],
    timed: bool,
) -> None:
    """One thread per stream; whatever ends one of them ends all, and none uses its stream when this returns.

    No thread touches the device before all have started: one whose start is interrupted cannot be waited for.
    An interruption may leave a `threading.Event` locked, and `join` takes a thread for ended in whose wait it
    comes; a `SimpleQueue` stays whole.
    """
    shared, failures, ended = _Shared(criterion), list[BaseException](), list[int]()
    starts, ends = SimpleQueue[None](), SimpleQueue[None]()

    def run(number: int) -> None:
        starts.get()
        try:
            if not shared.is_over:
                with device.adopt_thread():
                    _keep_busy(
                        device, inference_streams[number : number + 1], number, shared, finished, timed
                    )
        except BaseException as error:  # noqa: BLE001  (raised again in the thread that waits)
            failures.append(error)
            shared.give_up()
        finally:
            ended.append(number)
            ends.put(None)

    running = 0
    try:
        _start(
            [
                threading.Thread(target=run, args=(number,), daemon=True)
                for number in range(len(inference_streams))
            ]
        )
        running = len(inference_streams)
        _let_go(starts, len(inference_streams))
        _wait_until_ended(ends, ended, running)
    finally:
        shared.give_up()
        _let_go(starts, len(inference_streams))
        _wait_until_ended(ends, ended, running)
    if failures:
        raise failures[0]


def _let_go(starts: SimpleQueue[None], count: int) -> None:
    for _ in range(count):
        starts.put(None)


def _wait_until_ended(ends: SimpleQueue[None], ended: Sequence[int], count: int) -> None:
    """An entry in `ends` only wakes this thread: one that an interruption swallows costs a second."""
    while len(ended) < count:
        with suppress(Empty):
            ends.get(timeout=1.0)


def _start(threads: Sequence[threading.Thread]) -> None:
    try:
        for thread in threads:
            thread.start()
    except RuntimeError as error:
        raise DeviceError(
            f"{len(threads)} streams cannot have a host thread each: {error}",
            "use fewer --streams, or --threads one",
        ) from None


def as_samples(finished: Sequence[Finished], began_s: float, group: Sequence[int] = ()) -> Samples:
    """Columns, rounded to the nanosecond: no clock here resolves more, and result files stay small."""
    queries = [query for _, query in finished]
    return Samples(
        start_ms=[round((query.start_s - began_s) * 1e3, 6) for query in queries],
        end_ms=[round((query.end_s - began_s) * 1e3, 6) for query in queries],
        **{
            column: [round(ms, 6) for query in queries if (ms := getattr(query, column)) is not None]
            for column in STAGES.values()
        },
        inference_stream=[inference_stream for inference_stream, _ in finished],
        group=list(group),
    )


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python's collector must not run inside the timed region."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
