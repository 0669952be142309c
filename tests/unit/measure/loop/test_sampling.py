"""Several streams, served in turn by one host thread."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedSession
from tests.support.scripted_runs import INPUTS, SCRIPT, SHAPES, terms
from trtopt.errors import DeviceError
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.measure.loop.sampling import Finished, Until, drive
from trtopt.records import Contract

STREAMS = 3


@contextmanager
def streams_of(device: ScriptedDevice, contract: Contract) -> Iterator[list[InferenceStream]]:
    session = ScriptedSession(device)
    inference_streams = [InferenceStream(session, SHAPES, INPUTS, contract) for _ in range(contract.streams)]
    device.calls.clear()
    yield inference_streams
    for inference_stream in reversed(inference_streams):
        inference_stream.close()
    session.close()
    assert device.open == 0


@pytest.mark.parametrize("base", ["trtexec-10", "trtexec-11", "serving", "isolated"])
def test_every_query_of_every_stream_is_finished_once(base: str) -> None:
    device, finished = ScriptedDevice(SCRIPT), list[Finished]()
    with streams_of(device, terms(base, streams=STREAMS)) as inference_streams:
        drive(inference_streams, Until(40), finished)
        assert not any(slot.busy for inference_stream in inference_streams for slot in inference_stream.slots)
    handed_over = device.calls.count("launch") + device.calls.count("enqueue")
    assert len(finished) == handed_over == device.calls.count("wait") >= 40
    assert [number for number, _ in finished[: 2 * STREAMS]] == [0, 1, 2, 0, 1, 2]
    starts = [query.start_s for _, query in finished]
    assert starts == sorted(starts)


def test_what_had_finished_when_a_query_failed_is_kept() -> None:
    device, finished = ScriptedDevice(Script(fail_at=("wait", 40))), list[Finished]()
    with (
        streams_of(device, terms("trtexec-11", streams=STREAMS)) as inference_streams,
        pytest.raises(DeviceError, match="failure of wait"),
    ):
        drive(inference_streams, Until(1000), finished)
    assert len(finished) == 39
