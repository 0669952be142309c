"""Rows from everywhere meet in a batch: ONNX Runtime as a device whose memory is apart from the host's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.support.command_line import HELDOUT
from trtopt.device.api import Piece, Stream
from trtopt.device.ort.host import HostDevice
from trtopt.device.ort.runtime import OnnxRuntimeTarget
from trtopt.files.manifests import read_manifest, read_verified
from trtopt.records import DeviceInfo
from trtopt.serving import prepared_engine as prepared
from trtopt.serving.pool import EnginePool, Source

IMAGES = np.load(HELDOUT)["images"]
PLACES = ("host", "page-locked", "device")


class Apart(HostDevice):
    """Copies to and fro, as a GPU needs them; counts those that it gathers by one call."""

    gathered: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.info: DeviceInfo = msgspec.structs.replace(self.info, kind="gpu")

    def gather(self, pieces: Sequence[Piece], stream: Stream) -> None:
        self.gathered.append(len(pieces))
        super().gather(pieces, stream)


class ApartTarget(OnnxRuntimeTarget):
    def __init__(self) -> None:
        super().__init__()
        self.device = Apart()
        self.device.gathered = []


class Locked:
    """Page-locked memory, as torch shows its own."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 3, 0

    def __dlpack__(self, **_: object) -> object:
        return self.array.__dlpack__()


class OnDevice:
    """Device memory, as CuPy and pycuda show theirs."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, True),
            "version": 3,
            "stream": None,
        }


def placed(array: np.ndarray, place: str) -> object:
    return {"host": np.asarray, "page-locked": Locked, "device": OnDevice}[place](array.copy())


@pytest.fixture(scope="module")
def pool(cpu_build: Path) -> Iterator[EnginePool]:
    engines = read_manifest(cpu_build).engines
    sources = [Source(one, read_verified(cpu_build / one.path, one.sha256)) for one in engines]
    with EnginePool(ApartTarget(), sources) as opened:
        yield opened


@pytest.fixture(autouse=True, scope="module")
def small_batches_count_as_large() -> Iterator[None]:
    """Else the host copies page-locked images as small as these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared, "LOCKED_BYTES", 1024)
        yield


@given(
    parts=st.lists(st.tuples(st.integers(1, 9), st.sampled_from(PLACES)), min_size=1, max_size=6),
    start=st.integers(0, 300),
)
def test_rows_from_everywhere_are_answered_row_by_row(
    pool: EnginePool, right: np.ndarray, parts: list[tuple[int, str]], start: int
) -> None:
    ends = start + np.cumsum([count for count, _ in parts])
    given_parts = [
        pool.catalogue.part(placed(IMAGES[end - count : end], place))
        for end, (count, place) in zip(ends, parts, strict=True)
    ]
    answers = pool.run_parts(given_parts)
    for end, (count, _), answer in zip(ends, parts, answers, strict=True):
        assert np.allclose(answer["logits"], right[end - count : end], atol=1e-4)


@pytest.mark.parametrize(("place", "calls"), [("host", 0), ("page-locked", 1), ("device", 1)])
def test_what_the_device_can_read_goes_there_by_one_call(pool: EnginePool, place: str, calls: int) -> None:
    device = pool._device
    assert isinstance(device, Apart)
    device.gathered.clear()
    pool.run_parts([pool.catalogue.sample(placed(image, place)) for image in IMAGES[:5]])
    assert len(device.gathered) == calls
    assert all(pieces == 8 for pieces in device.gathered)  # the last one three times more


def test_the_host_copies_small_page_locked_rows_as_well(
    pool: EnginePool, right: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "LOCKED_BYTES", 1 << 20)
    device = pool._device
    assert isinstance(device, Apart)
    device.gathered.clear()
    locked = [pool.catalogue.sample(placed(image, "page-locked")) for image in IMAGES[:3]]
    answers = pool.run_parts([*locked, pool.catalogue.sample(placed(IMAGES[3], "device"))])
    assert device.gathered == [1 + 4]  # the device's, and for the rest of the batch
    assert np.allclose(np.concatenate([one["logits"] for one in answers]), right[:4], atol=1e-4)
