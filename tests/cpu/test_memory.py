"""Commands on a model of some size, as processes of their own: how much memory they take, all together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from time import sleep

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trtopt
from trtopt.api import check
from trtopt.errors import OutputError
from trtopt.onnxio import disk_space

GIB = 2**30


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of 432 MiB."""
    return gated_layers(tmp_path_factory.mktemp("memory") / "gated", wide=2048, layers=9)


def gated_layers(folder: Path, *, wide: int, layers: int) -> Path:
    """Gated layers behind normalisations: what smoothing, too, works on; and samples."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    columns = np.where(np.arange(wide) % 97, 1.0, 30.0).astype(np.float32)
    nodes, weights, last, offset = [], [], "x", 0
    with (folder / "m.data").open("wb") as file:
        for layer in range(layers):
            for name in "gud":
                name += str(layer)
                size = file.write(rng.standard_normal((wide, wide), np.float32) / 45)
                weight = TensorProto(name=name, data_type=1, dims=[wide, wide], data_location=1)
                for key, value in {"location": "m.data", "offset": offset, "length": size}.items():
                    weight.external_data.add(key=key, value=str(value))
                weights.append(weight)
                offset += size
            for op, inputs, out in (
                ("LayerNormalization", [last, "scale"], f"n{layer}"),
                ("MatMul", [f"n{layer}", f"g{layer}"], f"a{layer}"),
                ("Sigmoid", [f"a{layer}"], f"s{layer}"),
                ("Mul", [f"a{layer}", f"s{layer}"], f"h{layer}"),
                ("MatMul", [f"n{layer}", f"u{layer}"], f"b{layer}"),
                ("Mul", [f"h{layer}", f"b{layer}"], f"m{layer}"),
                ("MatMul", [f"m{layer}", f"d{layer}"], f"y{layer}"),
                ("Identity", [f"y{layer}"], f"z{layer}"),  # for the rewrite to erase and prove
            ):
                nodes.append(helper.make_node(op, inputs, [out], out))
            last = f"z{layer}"
    weights.append(onnx.numpy_helper.from_array(columns, "scale"))
    ends = [helper.make_tensor_value_info(name, 1, ["N", 8, wide]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    np.savez(folder / "x.npz", x=rng.standard_normal((4, 8, wide), np.float32))
    return folder


@pytest.fixture(scope="module")
def fp8(gated: Path) -> Path:
    """In the same folder, products with FP8 weights of 96 MiB, which a run dequantises."""
    nodes, weights, last = [], [onnx.numpy_helper.from_array(np.float32(1e-5), "scale")], "x"
    for layer in range(6):
        values = np.random.default_rng(layer).integers(0, 100, (4096, 4096), np.uint8).tobytes()
        dtype = TensorProto.FLOAT8E4M3FN
        weights.append(TensorProto(name=f"w{layer}", data_type=dtype, dims=[4096, 4096], raw_data=values))
        for op, inputs, out in (
            ("DequantizeLinear", [f"w{layer}", "scale"], f"d{layer}"),
            ("MatMul", [last, f"d{layer}"], f"y{layer}"),
            ("Identity", [f"y{layer}"], f"z{layer}"),
        ):
            nodes.append(helper.make_node(op, inputs, [out], out))
        last = f"z{layer}"
    ends = [helper.make_tensor_value_info(name, 1, [1, 4096]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (gated / "fp8.onnx").write_bytes(model.SerializeToString())
    return gated


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return []
    return [pid, *(one for child in children for one in family(int(child)))]


def held_kib(pid: int) -> int:
    """What a process holds that cannot be dropped: pages of mapped files are read again when needed."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Anonymous:", "Pss_Shmem:")))


def peak_gib(folder: Path, *words: str) -> float:
    """The most that `trtopt` and its processes held at a time."""
    peak = 0
    with TemporaryFile() as said:
        command = [sys.executable, "-m", "trtopt", *words]
        process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
        while process.poll() is None:
            peak = max(peak, sum(map(held_kib, family(process.pid))))
            sleep(0.03)  # each look walks all of their pages
        said.seek(0)
        assert process.returncode == 0, said.read().decode()
    return peak * 1024 / GIB


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="memory is read as Linux tells it")
@pytest.mark.parametrize(
    ("words", "weights"),
    [
        ("rewrite m.onnx -o rewritten.onnx", "m.data"),
        ("rewrite fp8.onnx -o rewritten8.onnx", "fp8.onnx"),
        ("cast m.onnx -o half.onnx --precision fp16 --data x.npz", "m.data"),
        ("quantize m.onnx -o int8.onnx --precision int8 --data x.npz", "m.data"),
        ("check m.onnx --against m.onnx --data x.npz", "m.data"),
    ],
    ids=["rewrite", "rewrite-fp8", "cast", "quantize", "check"],
)
def test_a_stage_holds_little_beside_the_weights(fp8: Path, words: str, weights: str) -> None:
    size = (fp8 / weights).stat().st_size / GIB
    # 2.5 times the weights and 0.5 GiB are promised; weights are mapped and not held, so that less will do
    assert peak_gib(fp8, *words.split()) < 0.25 * size + 0.2


def test_too_little_room_for_temporary_files_is_reported_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = gated_layers(tmp_path / "model", wide=256, layers=1)
    few = type("Usage", (), {"free": 1 << 10})
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: few)
    with pytest.raises(OutputError, match=r"(?s)up to 1\.5 MiB of .* another disk: output for"):
        trtopt.cast(gated / "m.onnx", tmp_path / "half.onnx", precision="fp16")
    assert list(tmp_path.iterdir()) == [gated]
    half = gated / "half.onnx"
    monkeypatch.undo()
    trtopt.cast(gated / "m.onnx", half, precision="fp16", compare=False, data=gated / "x.npz")
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: few)
    with pytest.raises(OutputError, match="TMPDIR"):
        check(half, gated / "m.onnx", data=gated / "x.npz")
