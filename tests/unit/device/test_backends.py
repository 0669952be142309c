"""Where engines that are built at once are built: on the GPUs of the first one's kind, in turn."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from trtopt.device.backends import places_to_build
from trtopt.device.cuda import probe
from trtopt.records import DeviceInfo

H200 = DeviceInfo(kind="gpu", name="NVIDIA H200", compute_capability="9.0")
L4 = DeviceInfo(kind="gpu", name="NVIDIA L4", compute_capability="8.9")


@dataclass(frozen=True)
class Host:
    gpus: tuple[DeviceInfo, ...]
    visible: str | None
    at_once: int
    places: tuple[str | None, ...]
    backend: str = "tensorrt"


HOSTS = {
    "a GPU each": Host((H200,) * 4, None, 4, ("0", "1", "2", "3")),
    "in turn": Host((H200,) * 2, None, 3, ("0", "1", "0")),
    "one at a time stays where it is": Host((H200,) * 2, None, 1, (None,)),
    "of the first one's kind alone": Host((H200, L4, H200), None, 2, ("0", "2")),
    "by the names that the user gave": Host((H200,) * 2, "3, GPU-7b", 2, ("3", "GPU-7b")),
    "names behind a wrong one are of no GPU": Host((H200,), "1,99,0", 2, ("1", "1")),
    "no GPU at all": Host((), None, 2, (None, None)),
    "nothing of a GPU's concern": Host((H200,) * 2, None, 2, (None, None), "onnxruntime"),
}


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_builds_are_spread_over_the_gpus_of_one_kind(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "gpus", lambda: host.gpus)
    if host.visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", host.visible)
    assert places_to_build(host.backend, host.at_once) == host.places
