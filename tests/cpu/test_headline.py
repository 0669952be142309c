"""The benchmark of the README's table, on ONNX Runtime with a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tests.support.command_line import DIGITS, HELDOUT

pytestmark = pytest.mark.long

HEADLINE = Path(__file__).parents[2] / "benchmarks" / "headline"
ASKED = ("digits-1-plain", "digits-1-trtopt-fp16", "digits-1-modelopt-int8")


def headline(*words: object) -> str:
    command = [sys.executable, HEADLINE / "headline.py", *words]
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `work` and `out`, measured in two goes."""
    folder = tmp_path_factory.mktemp("headline")
    places = ("--work", folder / "work", "--out", folder / "out", "--duration", 0.1, "--revision", "r1")
    headline("run", "--dry-run", *places, "--only", ASKED[0])
    first = (folder / "out" / f"{ASKED[0]}.json").read_bytes()
    assert headline("run", "--dry-run", *places, "--only", *ASKED).endswith("left: none\n")
    assert (folder / "out" / f"{ASKED[0]}.json").read_bytes() == first
    return folder


def test_a_cell_tells_latency_accuracy_and_where_it_was_measured(measured: Path) -> None:
    for name in ASKED:
        cell = json.loads((measured / "out" / f"{name}.json").read_text())
        assert cell["ms"] > 0
        assert cell["cosine"] > 0.999
        assert cell["backend"].startswith("onnxruntime ")
        assert (cell["revision"], cell["contract"]) == ("r1", "trtexec-11+no-graph")


def test_the_table_has_every_cell_and_says_which_are_missing(measured: Path) -> None:
    lines = headline("table", "--out", measured / "out").splitlines()
    rows = [line for line in lines if line.startswith("| digits | 1 |")]
    assert len(rows) == 2  # latency and accuracy
    for row in rows:
        plain, half, peer, int8, compiled = [cell.strip() for cell in row.split("|")[3:8]]
        assert int8 == compiled == "not yet measured"
        assert all(cell[0].isdigit() for cell in (plain, half, peer))


def test_what_failed_is_told_and_nothing_else_is_lost(measured: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    graphs = work / "digits" / "graphs"
    graphs.mkdir(parents=True)
    for file in (measured / "work" / "digits" / "graphs").iterdir():
        (graphs / file.name).write_bytes(file.read_bytes())
    (graphs / "modelopt-int8.onnx").write_bytes(b"no model")
    out = tmp_path / "out"
    places = ("--work", work, "--out", out, "--duration", 0.1)
    said = headline("run", "--dry-run", *places, "--only", *ASKED[::2])
    assert said.endswith("left: digits-1-modelopt-int8\n")
    assert "exit code 1" in json.loads((out / "digits-1-modelopt-int8.json").read_text())["failed"]
    assert "failed" in headline("table", "--out", out)


def test_a_peers_scales_are_found_anew_for_other_weights(
    measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(HEADLINE)
    from peer_graphs import recalibrated

    images = {"images": np.load(HELDOUT)["images"][:32]}
    model = onnx.load(measured / "work" / "digits" / "graphs" / "modelopt-int8.onnx")
    right = onnxruntime.InferenceSession(DIGITS).run(None, images)[0]
    scales = {node.input[1] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    for tensor in model.graph.initializer:
        if tensor.name in scales:
            spoilt = numpy_helper.to_array(tensor) / 20
            tensor.CopyFrom(numpy_helper.from_array(spoilt.astype(np.float32), tensor.name))
    assert sqnr_db(right, outputs(model, images)) < 10
    assert sqnr_db(right, outputs(recalibrated(model, images), images)) > 25


def outputs(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0])


def sqnr_db(right: np.ndarray, found: np.ndarray) -> float:
    return float(10 * np.log10((right**2).sum() / ((right - found) ** 2).sum()))
