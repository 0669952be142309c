"""A plugin library of the user's own: compiled, built into an engine, and loaded only if it is trusted."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trtopt
from tests.support.gpu_digits import SOURCES
from trtopt.errors import ArtifactError
from trtopt.serving import EnginePool

INCLUDE = Path(os.environ.get("TRTOPT_TEST_TENSORRT_INCLUDE", "/usr/include/x86_64-linux-gnu"))
"""TensorRT 8.6's headers, which its wheel lacks."""
REFUSED = "a plugin library that the engines need; it is native code and was not loaded"

pytestmark = pytest.mark.skipif(
    shutil.which("nvcc") is None or not (INCLUDE / "NvInfer.h").is_file(),
    reason="needs nvcc and TensorRT's headers (TRTOPT_TEST_TENSORRT_INCLUDE)",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("plugin") / "libdoubled.so"
    source = Path(__file__).with_name("doubled.cu")
    found = importlib.util.find_spec("tensorrt")
    assert found is not None
    assert found.origin is not None
    words = (
        *("nvcc", "-shared", "-arch=native", "-Xcompiler", "-fPIC", "-I", INCLUDE, "-o", made, source),
        *("-L", Path(found.origin).parent, "-l:libnvinfer.so.8", "-Xlinker", "--allow-shlib-undefined"),
    )
    subprocess.run(words, check=True, timeout=100)
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = 2 relu(x), with the plugin's operator."""
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["positive"]),
            helper.make_node("Doubled", ["positive"], ["y"], domain="tests"),
        ],
        "doubled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1000])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1000])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("tests", 1)]
    file = tmp_path_factory.mktemp("plugin") / "doubled.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)
    return file


def test_an_engine_with_a_plugin_runs_if_the_plugin_is_trusted(
    model: Path, library: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "built"
    trtopt.build(model, folder, batch=(1, 8), plugins=[library], backend="tensorrt", tactic_sources=SOURCES)
    with pytest.raises(ArtifactError, match=REFUSED):
        trtopt.bench(folder, batch=[8], duration=0.2)
    with pytest.raises(ArtifactError, match=REFUSED):
        EnginePool.open(folder)
    report = trtopt.bench(folder, batch=[1, 8], duration=0.2, trust=[str(library)])
    assert [point.batch for point in report.points] == [1, 8]
    rows = np.random.default_rng(0).normal(size=(11, 1000)).astype(np.float32)
    with EnginePool.open(folder, trust=[str(library)]) as pool:
        for _ in range(3):  # plain, captured, replayed
            assert np.array_equal(pool.run(rows)["y"], 2 * np.maximum(rows, 0))


def test_a_plugin_that_was_changed_since_is_not_loaded(model: Path, library: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.so"
    shutil.copy(library, own)
    folder = tmp_path / "built"
    trtopt.build(model, folder, batch=(1,), plugins=[own], backend="tensorrt", tactic_sources=SOURCES)
    with own.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ArtifactError, match="not the file that was named when the build was planned"):
        trtopt.bench(folder, batch=[1], duration=0.2, trust=[str(own)])


def test_without_its_plugin_the_model_is_refused_with_the_option_that_loads_it(
    model: Path, tmp_path: Path
) -> None:
    with pytest.raises(trtopt.TrtoptError) as raised:
        trtopt.build(model, tmp_path / "built", backend="tensorrt", tactic_sources=SOURCES)
    assert "Doubled" in raised.value.problem
    assert "plugins=[LIB.so]" in raised.value.remedy
