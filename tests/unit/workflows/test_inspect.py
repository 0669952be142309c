"""What `trtopt inspect` finds in models, engines, folders and files, and what it says of anything else."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import trtopt
from tests.rewrite_graphs import model
from tests.support import examples
from tests.support.command_line import DIGITS
from tests.support.inspected import stored
from trtopt.cli.main import cli
from trtopt.errors import BackendMissingError, NoGpuError, UsageError, WrongPathError
from trtopt.files.manifests import write_manifest
from trtopt.records import Inspection, from_json, to_json

RTX_HEAD = b"vtrt" + bytes(20) + bytes([1, 7, 1, 116]) + b"vtrt"


def saved(text: str, folder: Path) -> Path:
    onnx.save(model(text), folder / "in.onnx")
    return folder / "in.onnx"


def test_a_model_has_its_operators_weights_and_work() -> None:
    found = trtopt.inspect(DIGITS).model
    assert found is not None
    graph = onnx.load(DIGITS).graph
    assert found.nodes == len(graph.node) == sum(found.operators.values())
    assert found.parameters == sum(np.prod(one.dims, dtype=int) for one in graph.initializer)
    assert (found.opset, found.operators["Conv"]) == (17, 9)
    assert found.shapes == {"images": (1, 1, 8, 8)}


def test_work_is_counted_at_the_lengths_that_are_given(tmp_path: Path) -> None:
    path = saved("# w: float[16,8]\ng (float[N,S,16] x) => (float[N,S,8] y) {y = MatMul(x, w)}", tmp_path)
    one, many = trtopt.inspect(path), trtopt.inspect(path, batch=2, axes={"S": 5})
    assert one.model is not None
    assert many.model is not None
    assert (one.model.macs, many.model.macs) == (16 * 8, 2 * 5 * 16 * 8)
    assert (len(one.notes), len(many.notes)) == (1, 0)
    with pytest.raises(UsageError, match="axes"):
        trtopt.inspect(path, axes={"T": 5})


def test_work_of_quantised_products_is_counted_and_that_of_einsum_is_not_known(tmp_path: Path) -> None:
    constants = "float s = {0.1}, uint8 z = {0}"
    text = f"""g (float[N,4] x, uint8[4,5] w, uint8[6,4,1,1] k)
        => (uint8[N,5] y, int32[N,5] v, uint8[N,6,1,1] u)
        <{constants}, int64[4] t = {{0, 4, 1, 1}}>
        {{q = QuantizeLinear(x, s, z) y = QLinearMatMul(q, s, z, w, s, z, s, z) v = MatMulInteger(q, w)
          i = Reshape(q, t) u = QLinearConv(i, s, z, k, s, z, s, z)}}"""
    found = trtopt.inspect(saved(text, tmp_path)).model
    assert found is not None
    assert found.macs == 2 * 4 * 5 + 4 * 6
    found = trtopt.inspect(
        saved(
            'g (float[N,4] x, float[4,4] w) => (float[N,4] y) {y = Einsum<equation="ab,bc->ac">(x, w)}',
            tmp_path,
        )
    ).model
    assert found is not None
    assert found.macs is None


@pytest.mark.parametrize("product", ["com.microsoft.FusedMatMul", "com.microsoft.Attention"])
def test_work_of_products_of_another_domain_is_not_known(product: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[N,4] x, float[4,4] w) => (float[N,4] y) {{a = MatMul(x, w) y = {product}(a, w)}}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    found = trtopt.inspect(tmp_path / "in.onnx").model
    assert found is not None
    assert found.macs is None


def test_the_flag_for_an_axis_can_be_pasted(tmp_path: Path) -> None:
    path = saved("# w: float[16,8]\ng (float[N,S,16] x) => (float[N,S,8] y) {y = MatMul(x, w)}", tmp_path)
    made = onnx.load(path)
    made.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "past + 1"
    onnx.save(made, path)
    (note,) = trtopt.inspect(path).notes
    assert "--axis 'past + 1=N'" in note


def test_lengths_that_are_too_small_leave_the_work_unknown(tmp_path: Path) -> None:
    """A pool larger than its input makes an axis of negative length."""
    text = """# w: float[4,4]
        g (float[N,4,S] x) => (int64[3] y, float[N,4,T] z)
        {z = MaxPool<kernel_shape=[4]>(x) y = Shape(z) p = MatMul(w, z)}"""
    found = trtopt.inspect(saved(text, tmp_path)).model
    assert found is not None
    assert found.macs is None


def test_weights_outside_the_file_are_counted_and_not_read(tmp_path: Path) -> None:
    """The file of the weights is sparse, and larger than memory."""
    size = 1 << 40
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 19, 1 << 19])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1 << 19]) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "in.onnx").write_bytes(made.SerializeToString())
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(size)
    found = trtopt.inspect(tmp_path / "in.onnx").model
    assert found is not None
    assert [one.size_bytes for one in found.weights] == [size]
    assert (found.macs, found.weight_files) == (1 << 38, ("w.bin",))


def test_functions_subgraphs_and_other_domains_are_counted(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1, "com.microsoft": 1]>
        g (float[N,4] x, bool c, float[4,4] w) => (float[N,4] y)
        {a = own.twice(x, w) b = com.microsoft.FastGelu(a)
         y = If(c) <
            then_branch = t () => (float[N,4] p) {p = Relu(b)},
            else_branch = e () => (float[N,4] q) {q = Neg(b)}>}
        <domain: "own", opset_import: ["": 17]> twice (p, v) => (r) {m = MatMul(p, v) r = MatMul(m, v)}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    found = trtopt.inspect(tmp_path / "in.onnx").model
    assert found is not None
    assert (found.functions, found.subgraphs, found.macs) == (("twice",), 2, 2 * 4 * 4)
    assert found.domains == {"own": 1, "com.microsoft": 1}
    assert found.operators["com.microsoft::FastGelu"] == 1


def test_types_of_quantised_tensors_are_named(tmp_path: Path) -> None:
    text = """g (float[N,4] x) => (float[N,4] y) <float s = {0.1}, int8 z = {0}>
        {q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)}"""
    found = trtopt.inspect(saved(text, tmp_path)).model
    assert found is not None
    assert found.qdq_types == ("int8",)


def test_what_a_build_would_refuse_is_shown_and_noted(tmp_path: Path) -> None:
    path = saved("g (float[N,4] x) => (float[N,4] y) {a = NoSuchOperator(x) y = Relu(a)}", tmp_path)
    found = trtopt.inspect(path)
    assert found.model is not None
    assert found.model.operators == {"NoSuchOperator": 1, "Relu": 1}
    assert any("NoSuchOperator" in note for note in found.notes)


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build folder whose engine's layers TensorRT 8.6 has described."""
    artifact = msgspec.structs.replace(examples.engine(), layers="batch8.layers.json")
    for name, text in (
        (artifact.path, b"an engine"),
        (artifact.log, b""),
        ("batch8.layers.json", stored("r50_mo_int8").encode()),
    ):
        (tmp_path / name).write_bytes(text)
    sha256 = hashlib.sha256(b"an engine").hexdigest()
    artifact = msgspec.structs.replace(artifact, sha256=sha256)
    write_manifest(tmp_path, msgspec.structs.replace(examples.manifest(), engines=(artifact,)))
    return tmp_path


def test_a_build_has_its_engines_with_their_layers_and_its_files(build: Path) -> None:
    found = trtopt.inspect(build)
    (engine,) = found.engines
    assert engine.layers == sum(engine.kinds.values()) > 10
    assert sum(engine.weight_types.values()) == pytest.approx(1)
    assert "int8" in engine.weight_types
    assert {one.name for one in found.members} == {one.name for one in build.iterdir()}
    assert trtopt.inspect(build / engine.artifact.path).engines == found.engines


def test_layers_that_were_changed_are_not_shown(build: Path) -> None:
    (build / "batch8.layers.json").write_text(stored("r50_fp16"))
    found = trtopt.inspect(build)
    assert found.engines[0].layers is None
    assert "batch8.layers.json" in found.notes[0]


def test_an_engine_without_a_manifest_is_named_and_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bare.engine"
    path.write_bytes(RTX_HEAD)
    found = trtopt.inspect(path)
    assert "TensorRT-RTX 1.7.1.116" in found.what
    assert "--trust" in found.notes[0]
    monkeypatch.setattr("trtopt.device.cuda.probe.gpus", tuple)
    for content in (RTX_HEAD, b"an engine of another age"):
        path.write_bytes(content)
        with pytest.raises((NoGpuError, BackendMissingError)):
            trtopt.inspect(path, trust=[str(path)])


def test_the_table_of_a_result_file_is_shown_again(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(to_json(examples.report()))
    done = CliRunner().invoke(cli, ["inspect", str(path), "--json", str(tmp_path / "out.json")])
    assert done.exit_code == 0
    lines = [line.split() for line in done.output.splitlines()]
    assert examples.report().table().splitlines()[-1].split() in lines
    found = from_json((tmp_path / "out.json").read_bytes(), Inspection)
    assert found.what == "a result of `trtopt bench`"
    assert json.loads((tmp_path / "out.json").read_bytes())["schema"] == "trtopt.inspect/2"


def test_a_folder_lists_what_is_known_in_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "r.json").write_bytes(to_json(examples.report()))
    (tmp_path / "link.onnx").symlink_to(tmp_path / "nowhere")
    (tmp_path / "weights").write_bytes(b"\x80\x3f" * 8)  # bytes of any numbers, not a pickle
    assert [one.name for one in trtopt.inspect(tmp_path).members] == ["r.json"]
    (tmp_path / "r.json").unlink()
    with pytest.raises(WrongPathError):
        trtopt.inspect(tmp_path)


def other_files(folder: Path) -> dict[str, Path]:
    """Files of other programs by a word that names them."""
    arrays, checkpoint = folder / "a.npz", folder / "b.pt"
    np.savez(arrays, x=np.zeros(3))
    with zipfile.ZipFile(checkpoint, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    weights = folder / "c.safetensors"
    weights.write_bytes((8).to_bytes(8, "little") + b'{"a":{}}')
    pointer = folder / "d.onnx"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\n")
    return {"NumPy": arrays, "PyTorch": checkpoint, "safetensors": weights, "LFS": pointer}


def test_another_file_is_named_with_what_it_looks_like(tmp_path: Path) -> None:
    for word, path in other_files(tmp_path).items():
        with pytest.raises(WrongPathError, match=word):
            trtopt.inspect(path)
    (tmp_path / "e.txt").write_text("hello")
    with pytest.raises(WrongPathError):
        trtopt.inspect(tmp_path / "e.txt")


PLUGINS = """g (float[N,4] x) => (float[N,4] y)
    {a = Relu(x) b = own.Foo(a) c = Relu(b) d = own.Foo(c) y = Relu(d)}"""


@pytest.mark.parametrize("target", ["rtx", "8.6"])
def test_a_target_that_refuses_a_node_ends_with_3(target: str, tmp_path: Path) -> None:
    """With and without the target's parser here."""
    text = f'<ir_version: 8, opset_import: ["": 17, "own": 1]>\n{PLUGINS}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    out = tmp_path / "out.json"
    model = str(tmp_path / "in.onnx")
    done = CliRunner().invoke(cli, ["inspect", model, "--capability", target, "--json", str(out)])
    assert done.exit_code == 3, done.output
    found = from_json(out.read_bytes(), Inspection).capability
    assert found is not None
    assert (len(found.refused), [one.operator for one in found.refused]) == (2, ["Foo", "Foo"])
    assert [len(one.nodes) for one in found.subgraphs] == [1, 1, 1]
    assert [one.is_imported for one in found.subgraphs].count(True) == (1 if target == "rtx" else 0)
    done = CliRunner().invoke(cli, ["inspect", str(DIGITS), "--capability", target])
    assert done.exit_code == (0 if target == "rtx" else 5)  # no parser has shown it


def test_where_nothing_is_left_no_subgraphs_are_listed(tmp_path: Path) -> None:
    path = saved("g (int8[N,4] x, int8[4,4] w) => (int32[N,4] y) {y = MatMulInteger(x, w)}", tmp_path)
    found = trtopt.inspect(path, capability="8.6")
    assert "install TensorRT 8.6" in found.notes[0]
    assert "Refused" in str(found.view)
    assert "Subgraphs" not in str(found.view)


def test_only_models_have_a_capability(build: Path) -> None:
    with pytest.raises(UsageError, match="capability"):
        trtopt.inspect(build, capability="rtx")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(WrongPathError):
        trtopt.inspect(tmp_path / "pipe.json")
