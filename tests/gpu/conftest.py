"""Everything here runs real engines on a CUDA device; without one it is skipped."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.support.gpu_digits import DIGITS, IMAGES, SOURCES
from trtopt.device.api import Device
from trtopt.device.backends import open_cuda_device
from trtopt.device.cuda import probe


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip all of it where there is no GPU or no TensorRT."""
    if probe.gpus() and importlib.util.find_spec("tensorrt"):
        return
    for item in items:  # all that pytest collected, other folders' tests too
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device and TensorRT"))


@pytest.fixture(scope="session", autouse=True)
def store_of_timing_caches(store_of_timing_caches: None) -> None:
    """The store that runs of `run_shards.py` share, if there is one."""
    if shared := os.environ.get("TRTOPT_TEST_STORE"):
        os.environ["TRTOPT_CACHE_DIR"] = shared


@pytest.fixture(params=["cuda-python", "pycuda"])
def binding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both CUDA bindings, one after the other."""
    monkeypatch.setenv("TRTOPT_CUDA", request.param)
    return str(request.param)


@pytest.fixture
def device(binding: str) -> Iterator[Device]:
    """An open CUDA device."""
    opened = open_cuda_device()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def right() -> np.ndarray:
    """The logits of all images, as ONNX Runtime computes them."""
    session = onnxruntime.InferenceSession(str(DIGITS), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["logits"], {"images": IMAGES})[0])


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits model built for batches 1 and 8, with its timing cache; a copy that a test may change.

    Files of tests have a process each: what one has built the others find in the store.
    """
    import trtopt

    folder = tmp_path_factory.mktemp("gpu") / "digits"
    shared = os.environ.get("TRTOPT_TEST_STORE")
    kept = Path(shared) / "built" / "digits" if shared else folder
    if not (kept / "manifest.json").is_file():
        trtopt.build(DIGITS, kept, batch=(1, 8), backend="tensorrt", tactic_sources=SOURCES)
    if kept != folder:
        shutil.copytree(kept, folder)
    return folder
