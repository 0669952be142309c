"""Host threads: one, or one a stream. What a thread does must not depend on how the system schedules it."""

import gc
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedSession
from tests.support.scripted_runs import COMPUTE, ENQUEUE, SCRIPT, SUBJECT, counted, run, terms
from trtopt.errors import DeviceError
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.measure.loop.sampling import Finished, drive
from trtopt.records import Contract

STREAMS = 3
BEFORE = threading.active_count()
PER_STREAM = terms("trtexec-11", streams=STREAMS, threads="per-stream")


def assert_no_thread_is_left() -> None:
    """Threads that have let go of their lanes end within moments."""
    deadline = time.monotonic() + 10
    while threading.active_count() > BEFORE:
        assert time.monotonic() < deadline
        time.sleep(0.001)


class EachThread:
    """Met when so many threads have finished so many queries each."""

    def __init__(self, threads: int, queries: int) -> None:
        self._threads, self._queries = threads, queries
        self.finished: Counter[int] = Counter()

    def add(self, latency_ms: float) -> None:
        self.finished[threading.get_ident()] += 1

    def is_finished(self, elapsed_s: float) -> bool:
        return len(self.finished) == self._threads and min(self.finished.values()) >= self._queries


class Never(EachThread):
    """Never met."""

    def is_finished(self, elapsed_s: float) -> bool:
        return False


@contextmanager
def lanes_of(device: ScriptedDevice, contract: Contract) -> Iterator[list[InferenceStream]]:
    session = ScriptedSession(device)
    inference_streams = [
        InferenceStream(device, session, SUBJECT.shapes, SUBJECT.data, contract)
        for _ in range(contract.streams)
    ]
    device.calls.clear()
    yield inference_streams
    for inference_stream in reversed(inference_streams):
        inference_stream.close()
    session.close()
    assert device.open == 0
    assert_no_thread_is_left()


@pytest.mark.parametrize("base", ["trtexec-10", "trtexec-11", "serving", "isolated"])
def test_every_stream_has_a_thread_and_every_query_is_finished_once(base: str) -> None:
    device, finished = ScriptedDevice(SCRIPT), list[Finished]()
    criterion = EachThread(STREAMS, queries=20)
    with lanes_of(device, terms(base, streams=STREAMS, threads="per-stream")) as inference_streams:
        drive(device, inference_streams, criterion, finished)
        assert not any(slot.busy for inference_stream in inference_streams for slot in inference_stream.slots)
    assert {inference_stream for inference_stream, _ in finished} == set(range(STREAMS))
    assert len(criterion.finished) == device.calls.count("adopt_thread") == STREAMS
    handed_over = device.calls.count("launch") + device.calls.count("enqueue")
    assert len(finished) == handed_over == device.calls.count("wait")
    starts = [query.start_s for _, query in finished]
    assert starts == sorted(starts)


def test_a_streams_own_thread_is_not_held_up_by_the_others() -> None:
    """Each hands its queries over as a lone stream's thread does; from one thread they take turns."""
    device, finished = ScriptedDevice(SCRIPT), list[Finished]()
    with lanes_of(device, PER_STREAM) as inference_streams:
        began_s = device.now()
        drive(device, inference_streams, EachThread(STREAMS, queries=5), finished)
        ended_s = device.now()
    for number in range(STREAMS):
        ends = [
            (query.end_s - began_s) * 1e3
            for inference_stream, query in finished
            if inference_stream == number
        ]
        assert ends == pytest.approx([ENQUEUE + COMPUTE * (n + 1) for n in range(len(ends))], rel=1e-9)
    assert ended_s == max(query.end_s for _, query in finished)


def test_one_thread_serves_all_streams_unless_told_otherwise() -> None:
    device, finished = ScriptedDevice(SCRIPT), list[Finished]()
    criterion = EachThread(1, queries=10)
    with lanes_of(device, terms("trtexec-11", streams=STREAMS)) as inference_streams:
        drive(device, inference_streams, criterion, finished)
    assert list(criterion.finished) == [threading.get_ident()]
    assert "adopt_thread" not in device.calls


def test_a_pass_records_its_threads_and_a_latency_pass_has_one() -> None:
    measured = run(ScriptedDevice(SCRIPT), PER_STREAM, "throughput", counted(queries=60))
    assert measured.contract.name == "trtexec-11+streams=3+threads=per-stream"
    assert (measured.contract.threads, len(measured.samples.start_ms) >= 60) == ("per-stream", True)
    device = ScriptedDevice(SCRIPT)
    assert run(device, PER_STREAM, "latency", counted(queries=5)).contract.threads == "one"
    assert "adopt_thread" not in device.calls


@pytest.mark.parametrize("base", ["trtexec-10", "serving"])
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("adopt_thread", 1),
        *((name, n) for name in ("enqueue", "copy_to_device", "copy_to_host", "wait") for n in (1, 4, 9, 40)),
    ],
)
def test_whatever_fails_in_a_thread_ends_all_and_closes_everything(base: str, name: str, count: int) -> None:
    device = ScriptedDevice(Script(fail_at=(name, count)))
    contract = terms(base, streams=STREAMS, threads="per-stream", graph=False)
    try:
        told = run(device, contract, "throughput", counted(queries=200, warmups=10)).failure
    except DeviceError as error:  # before any sample; later the pass comes back marked
        told = error.problem
    assert told == f"scripted failure of {name}"
    assert (device.open, device.used) == (0, 0)
    assert gc.isenabled()
    assert_no_thread_is_left()


@pytest.mark.parametrize("number", range(1, STREAMS + 1))
def test_a_thread_that_the_device_does_not_take_ends_the_others(number: int) -> None:
    device, finished = ScriptedDevice(Script(fail_at=("adopt_thread", number))), list[Finished]()
    with (
        lanes_of(device, PER_STREAM) as inference_streams,
        pytest.raises(DeviceError, match="failure of adopt_thread"),
    ):
        drive(device, inference_streams, Never(STREAMS, 0), finished)


def test_what_had_finished_when_a_query_failed_is_kept() -> None:
    device, finished = ScriptedDevice(Script(fail_at=("wait", 40))), list[Finished]()
    with (
        lanes_of(device, PER_STREAM) as inference_streams,
        pytest.raises(DeviceError, match="failure of wait"),
    ):
        drive(device, inference_streams, Never(STREAMS, 0), finished)
    others = device.calls.count("wait") - 1
    assert len(finished) == others >= 39


def test_the_error_of_a_later_failure_does_not_hide_the_first() -> None:
    class Broken(ScriptedDevice):
        """One wait fails; after that all do, as CUDA's calls do after some errors."""

        first: threading.Thread | None = None
        entering = threading.Lock()

        def call(self, name: str) -> None:
            super().call(name)
            if name != "wait" or self.calls.count(name) < 50:
                return
            with self.entering:
                is_first, self.first = self.first is None, self.first or threading.current_thread()
            if is_first:
                raise DeviceError("the first failure", "")
            self.first.join()  # its failure is known before the others'
            raise DeviceError("a later failure", "")

    device, finished = Broken(SCRIPT), list[Finished]()
    with (
        lanes_of(device, PER_STREAM) as inference_streams,
        pytest.raises(DeviceError, match="the first failure"),
    ):
        drive(device, inference_streams, Never(STREAMS, 0), finished)


def test_an_interruption_of_the_main_thread_ends_the_others() -> None:
    class Interrupting(ScriptedDevice):
        """Ctrl-C comes once, while queries run."""

        once = threading.Lock()

        def call(self, name: str) -> None:
            super().call(name)
            if name == "wait" and self.calls.count(name) >= 50 and self.once.acquire(blocking=False):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    device, finished = Interrupting(SCRIPT), list[Finished]()
    with lanes_of(device, PER_STREAM) as inference_streams:
        with pytest.raises(KeyboardInterrupt):
            drive(device, inference_streams, Never(STREAMS, 0), finished)
        assert not any(slot.busy for inference_stream in inference_streams for slot in inference_stream.slots)
    assert len(finished) >= 50


def test_a_system_that_gives_no_more_threads_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def two_only(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", two_only)
    device, finished = ScriptedDevice(SCRIPT), list[Finished]()
    with lanes_of(device, PER_STREAM) as inference_streams:
        with pytest.raises(DeviceError, match="3 streams cannot have a host thread each") as caught:
            drive(device, inference_streams, Never(STREAMS, 0), finished)
        assert "--threads one" in caught.value.remedy
