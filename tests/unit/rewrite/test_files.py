# ruff: noqa: E501 - graphs read best one statement after another
"""Files in, files out: weights stay where they were, bad input is named, nothing half-written is left."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.errors import (
    DataError,
    InvalidModelError,
    ModelError,
    OutputError,
    UnsupportedOpError,
    UsageError,
)
from trtopt.onnxio.external_data import weights_of
from trtopt.onnxio.model_file import load, save, sealed
from trtopt.onnxio.prepare import prepare
from trtopt.rewrite.driver import rewrite
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rules import RULES
from trtopt.targets import target_named

_LARGE = (
    "# w: float[64,64]\ng (float[N,64] x) => (float[N,64] y) {a = Identity(w) b = MatMul(x, a) y = Relu(b)}"
)


def _saved(text: str, folder: Path, opset: int = 17) -> Path:
    onnx.save(model(text, opset), folder / "in.onnx")
    return folder / "in.onnx"


def test_inline_weights_stay_inline_and_keep_their_bits(tmp_path: Path) -> None:
    source = _saved(_LARGE, tmp_path)
    rewrite_model(source, tmp_path / "out.onnx", target="10")
    before, after = (onnx.load(path).graph.initializer[0] for path in (source, tmp_path / "out.onnx"))
    assert before.raw_data == after.raw_data
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]


def test_external_weights_stay_external(tmp_path: Path) -> None:
    onnx.save(
        model(_LARGE), tmp_path / "in.onnx", save_as_external_data=True, location="in.bin", size_threshold=0
    )
    rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    stripped = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    assert stripped.graph.initializer[0].external_data[0].value == "out.onnx.data"
    whole = onnx.load(tmp_path / "out.onnx")
    assert onnx.numpy_helper.to_array(whole.graph.initializer[0]).shape == (64, 64)
    rewrite_model(tmp_path / "out.onnx", tmp_path / "again.onnx", target="10")
    assert (tmp_path / "out.onnx.data").read_bytes() == (tmp_path / "again.onnx.data").read_bytes()


def test_a_model_over_two_gib_is_written_with_its_weights_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtopt.onnxio.model_file.INLINE_LIMIT", 1000)
    rewrite_model(_saved(_LARGE, tmp_path), tmp_path / "out.onnx", target="10")
    assert (tmp_path / "out.onnx.data").stat().st_size >= 64 * 64 * 4


def test_names_and_shapes_of_weights_count_towards_two_gib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = _saved(_LARGE, tmp_path), tmp_path / "out.onnx"
    rewrite_model(source, out, target="10")
    seal = len(next(iter(sealed([]))))
    monkeypatch.setattr("trtopt.onnxio.model_file.INLINE_LIMIT", out.stat().st_size - seal)
    rewrite_model(source, out, target="10")
    assert not (tmp_path / "out.onnx.data").exists()
    monkeypatch.setattr("trtopt.onnxio.model_file.INLINE_LIMIT", out.stat().st_size - seal - 10)
    rewrite_model(source, out, target="10")
    assert (tmp_path / "out.onnx.data").exists()


def test_what_is_no_initializer_and_exceeds_two_gib_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = load(_saved(_LARGE, tmp_path))
    monkeypatch.setattr("trtopt.onnxio.external_data.INLINE_LIMIT", 20)
    with pytest.raises(InvalidModelError):
        save(source, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_metadata_producer_and_declared_shapes_are_kept(tmp_path: Path) -> None:
    made = model("g (float[N,4] x) => (float[N,4] y) {a = Relu(x) b = Identity(a) y = Neg(b)}")
    made.metadata_props.add(key="author", value="us")
    made.producer_name, made.doc_string, made.model_version = "tool", "words", 7
    made.graph.value_info.append(onnx.helper.make_tensor_value_info("a", 1, ["N", 4]))
    onnx.save(made, tmp_path / "in.onnx")
    rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    after = onnx.load(tmp_path / "out.onnx")
    assert [(item.key, item.value) for item in after.metadata_props][:-1] == [("author", "us")]
    assert (after.producer_name, after.doc_string, after.model_version) == ("tool", "words", 7)
    assert [item.name for item in after.graph.value_info] == ["a"]


def test_subgraphs_are_rewritten_and_what_they_read_from_outside_survives(tmp_path: Path) -> None:
    source = _saved("""
        g (float[N,4] x, bool c) => (float[N,4] y) {
          a = Relu(x)
          b = Identity(a)
          y = If(c) <then_branch = t () => (float[N,4] p) {u = Relu(b) v = Identity(u) p = Neg(v)},
                     else_branch = e () => (float[N,4] q) {w = Identity(b) q = Abs(w)}>
        }""", tmp_path)  # fmt: skip
    trace = rewrite_model(source, tmp_path / "out.onnx", target="10")
    assert trace.counts["erase-identity"] == 3
    assert all(item.ok for item in trace.checked)


def test_weights_of_the_main_graph_that_subgraphs_read_stay_in_the_main_graph(tmp_path: Path) -> None:
    text = """
        # w: float[64,64]
        # u: float[4]
        g (float[N,64] x, bool c) => (float[N,64] y) <float two = {2.0}, float same = {2.0}> {
          a = Relu(x)
          b = Mul(a, two)
          y = If(c) <then_branch = t () => (float[N,64] p) {q = MatMul(b, w) r = Mul(q, same) p = Identity(r)},
                     else_branch = e () => (float[N,64] s) <float t = {2.0}> {v = Mul(b, two) z = Mul(v, t) s = Neg(z)}>
        }"""
    trace = rewrite_model(_saved(text, tmp_path), tmp_path / "out.onnx", target="10")
    assert trace.undone == ()
    assert all(item.ok for item in trace.checked)
    after = onnx.load(tmp_path / "out.onnx")
    assert "w" in {item.name for item in after.graph.initializer}
    onnx.checker.check_model(after, full_check=True)


def test_functions_are_inlined_first(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[N,4] x) => (float[N,4] y) {a = mine.twice(x) y = Neg(a)}
        <domain: "mine", opset_import: ["" : 17]> twice (p) => (r) {q = Relu(p) r = Identity(q)}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert trace.counts == {"erase-identity": 1}


def test_a_function_of_another_opset_is_refused(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[N,4] x) => (float[N,4] y) {a = mine.twice(x) y = Neg(a)}
        <domain: "mine", opset_import: ["" : 13]> twice (p) => (r) {q = Relu(p) r = Relu(q)}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    with pytest.raises(UnsupportedOpError, match="'twice'"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")


def test_the_other_name_of_the_standard_domain_is_understood(tmp_path: Path) -> None:
    made = model("g (float[N,4] x) => (float[N,4] y) {a = Identity(x) y = Relu(a)}")
    made.opset_import[0].domain = made.graph.node[1].domain = "ai.onnx"
    onnx.save(made, tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert (trace.counts, trace.undone) == ({"erase-identity": 1}, ())


def test_an_axis_of_minus_one_is_open(tmp_path: Path) -> None:
    made = model("g (float[N,4] x) => (int64[2] y) {a = Relu(x) s = Shape(a) y = Neg(s)}")
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    onnx.save(made, tmp_path / "in.onnx")
    rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert "Shape" in {node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node}


def test_inputs_with_a_default_value_become_constants_and_are_named(tmp_path: Path) -> None:
    made = model(
        "# w: float[4,4]\ng (float[N,4] x, float[4,4] w) => (float[N,4] y) {a = Identity(x) y = MatMul(a, w)}"
    )
    onnx.save(made, tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert trace.notes == ("inputs with a default value are constants, as TensorRT takes them: w",)
    assert [item.name for item in onnx.load(tmp_path / "out.onnx").graph.input] == ["x"]


def test_shapes_declared_in_branches_that_share_names_are_not_mixed_up(tmp_path: Path) -> None:
    made = model("""
        g (bool c, float[2,3] x) => (float[A,B] y) {
          y = If (c) <then_branch = t () => (float[A,B] o) <int64[2] s = {3,2}> {u = Reshape(x, s) v = Identity(u) o = Relu(v)},
                      else_branch = e () => (float[A,B] p) {u = Concat<axis=0>(x, x) p = Neg(u)}>
        }""")  # fmt: skip
    for attribute, shape in zip(made.graph.node[0].attribute, ([3, 2], [4, 3]), strict=True):
        attribute.g.value_info.append(onnx.helper.make_tensor_value_info("u", 1, shape))
    onnx.save(made, tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert (trace.counts, trace.undone) == ({"erase-identity": 1}, ())
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"), full_check=True)


def test_an_input_that_is_no_tensor_is_named(tmp_path: Path) -> None:
    made = model("g (float[2] x, int64 i) => (float[2] y) {a = SequenceAt(x, i) y = Identity(a)}")
    made.graph.input[0].CopyFrom(onnx.helper.make_tensor_sequence_value_info("x", 1, [2]))
    (tmp_path / "in.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(ModelError, match="input 'x' is no tensor but a sequence"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", check=False)
    assert trace.nodes_after <= trace.nodes_before


def test_three_gib_of_weights_need_little_memory_without_the_proof(tmp_path: Path) -> None:
    rows = 3 * 2**20  # of 1 KiB
    made = model(
        "# w: float[1,256]\ng (int64[N] i) => (float[N,256] y) {a = Gather(w, i) b = Identity(a) y = Relu(b)}"
    )
    weight = made.graph.initializer[0]
    weight.Clear()
    weight.name, weight.data_type, weight.data_location = (
        "w",
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.EXTERNAL,
    )
    weight.dims.extend([rows, 256])
    weight.external_data.add(key="location", value="w.bin")
    (tmp_path / "in.onnx").write_bytes(made.SerializeToString())
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(rows * 1024)
    prepared = prepare(load(tmp_path / "in.onnx"))
    tracemalloc.start()
    outcome = rewrite(prepared, RULES, target_named("10"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [item.rule for item in outcome.applied] == ["erase-identity"]
    assert peak < 2**24


def test_unsorted_nodes_are_sorted(tmp_path: Path) -> None:
    made = model("g (float[N,4] x) => (float[N,4] y) {a = Relu(x) y = Neg(a)}")
    nodes = list(made.graph.node)[::-1]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    (tmp_path / "in.onnx").write_bytes(made.SerializeToString())
    rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", check=False)
    assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == ["Relu", "Neg"]


def test_unknown_domains_are_left_alone(tmp_path: Path) -> None:
    made = model("g (float[N,4] x) => (float[N,4] y) {a = Identity(x) b = Relu(a) y = Neg(b)}")
    made.graph.node[1].domain = "vendor"
    made.opset_import.add(domain="vendor", version=1)
    onnx.save(made, tmp_path / "in.onnx")
    rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10", check=False)
    after = onnx.load(tmp_path / "out.onnx")
    assert [(node.domain, node.op_type) for node in after.graph.node] == [("vendor", "Relu"), ("", "Neg")]


@pytest.mark.parametrize(
    "content", [b"", b"no model at all, only words", b"\x08\x07"], ids=["empty", "text", "no graph"]
)
def test_what_is_no_model_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(content)
    with pytest.raises(InvalidModelError, match=r"in\.onnx"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_named(share: float, tmp_path: Path) -> None:
    source = _saved(_LARGE, tmp_path)
    source.write_bytes(source.read_bytes()[: int(source.stat().st_size * share)])
    with pytest.raises(InvalidModelError):
        rewrite_model(source, tmp_path / "out.onnx", target="10")


def _broken(kind: str) -> onnx.ModelProto:
    made = model("# w: float[4,4]\ng (float[N,4] x) => (float[N,4] y) {a = MatMul(x, w) y = Neg(a)}")
    if kind == "cycle":
        made.graph.node[0].input[0] = "y"
    elif kind == "missing initializer":
        del made.graph.initializer[:]
        made.graph.node[0].input[0] = "z"  # missing too, and always told second
    elif kind == "made twice":
        made.graph.node[0].output[0] = "y"
    elif kind == "no output":
        made.graph.output[0].name = "z"
    return made


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cycle", "cycle"),
        ("missing initializer", "'w'"),
        ("made twice", "more than one tensor"),
        ("no output", "output 'z'"),
    ],
)
def test_an_unsound_graph_is_named(kind: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(_broken(kind).SerializeToString())
    with pytest.raises(InvalidModelError, match=words):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")


@pytest.mark.parametrize("kind", ["missing", "short", "outside", "link"])
def test_weights_that_cannot_be_found_are_named(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save(
        model(_LARGE), folder / "in.onnx", save_as_external_data=True, location="in.bin", size_threshold=0
    )
    if kind == "missing":
        (folder / "in.bin").unlink()
    elif kind == "short":
        (folder / "in.bin").write_bytes(b"1234")
    elif kind == "link":
        (folder / "in.bin").rename(tmp_path / "in.bin")
        (folder / "in.bin").symlink_to("../in.bin")
    else:
        (folder / "in.bin").rename(tmp_path / "in.bin")
        proto = onnx.load(folder / "in.onnx", load_external_data=False)
        proto.graph.initializer[0].external_data[0].value = "../in.bin"
        (folder / "in.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(InvalidModelError, match="'w'"):
        rewrite_model(folder / "in.onnx", tmp_path / "out.onnx", target="10")


def test_an_attribute_that_would_be_lost_stops_the_rewrite(tmp_path: Path) -> None:
    made = model("g (float[N,4] x) => (float[N,4] y) {a = Relu(x) y = Neg(a)}")
    made.graph.node[0].domain = "vendor"
    made.opset_import.add(domain="vendor", version=1)
    made.graph.node[0].attribute.append(
        onnx.helper.make_attribute("kind", onnx.helper.make_tensor_type_proto(1, [2]))
    )
    onnx.save(made, tmp_path / "in.onnx")
    with pytest.raises(UnsupportedOpError, match="'kind'"):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")


def test_the_model_itself_is_never_replaced(tmp_path: Path) -> None:
    source = _saved(_LARGE, tmp_path)
    with pytest.raises(UsageError, match="replace"):
        rewrite_model(source, source, target="10")


def test_the_models_own_weights_are_never_replaced(tmp_path: Path) -> None:
    onnx.save(
        model(_LARGE),
        tmp_path / "in.onnx",
        save_as_external_data=True,
        location="out.onnx.data",
        size_threshold=0,
    )
    before = (tmp_path / "out.onnx.data").read_bytes()
    rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert (tmp_path / "out.onnx.data").read_bytes() == before
    assert weights_of(tmp_path / "out.onnx") == [tmp_path / "out.onnx.1.data"]
    with pytest.raises(OutputError):
        rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx.data", target="10")
    assert (tmp_path / "out.onnx.data").read_bytes() == before


def test_new_large_weights_pass_through_files_that_do_not_stay(tmp_path: Path) -> None:
    text = """
        # w: float[512,1024]
        g (float[N,1024] x, bool c) => (float[N,512] y) {
          y = If(c) <then_branch = t () => (float[N,512] p) {u = Transpose<perm=[1,0]>(w) q = MatMul(x, u) p = Neg(q)},
                     else_branch = e () => (float[N,512] s) {v = Transpose<perm=[1,0]>(w) s = MatMul(x, v)}>
        }"""
    made = model(text)
    twin = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(made.graph.initializer[0]), "w2")
    made.graph.initializer.append(twin)
    made.graph.node[0].attribute[1].g.node[0].input[0] = "w2"
    onnx.save(made, tmp_path / "in.onnx")
    trace = rewrite_model(tmp_path / "in.onnx", tmp_path / "out.onnx", target="10")
    assert trace.counts == {"fold-weights": 2}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"), full_check=True)


def test_models_behind_links_are_read(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "links").mkdir()
    source = _saved(_LARGE, tmp_path / "blobs")
    (tmp_path / "links" / "model.onnx").symlink_to(source)
    trace = rewrite_model(tmp_path / "links" / "model.onnx", tmp_path / "out.onnx", target="10")
    assert trace.counts == {"erase-identity": 1}


def test_a_place_that_cannot_be_written_is_named_and_left_clean(tmp_path: Path) -> None:
    source = _saved(_LARGE, tmp_path)
    (tmp_path / "nowhere").write_text("a file, no folder")
    with pytest.raises(OutputError, match="nowhere"):
        rewrite_model(source, tmp_path / "nowhere" / "out.onnx", target="10")


def test_real_data_takes_part_in_the_check(tmp_path: Path) -> None:
    source = _saved(_LARGE, tmp_path)
    np.savez(tmp_path / "data.npz", x=np.ones((5, 64), np.float32))
    trace = rewrite_model(source, tmp_path / "out.onnx", target="10", data=tmp_path / "data.npz")
    assert "data.npz" in {item.feed for item in trace.checked}


def test_data_that_is_no_archive_is_an_error_of_ours(tmp_path: Path) -> None:
    source = _saved(_LARGE, tmp_path)
    (tmp_path / "data.npz").write_bytes(b"PK\x03\x04 but nothing more")
    with pytest.raises(DataError, match="cannot be read as"):
        rewrite_model(source, tmp_path / "out.onnx", target="10", data=tmp_path / "data.npz")


@pytest.mark.parametrize(
    ("array", "words"),
    [({"z": np.ones((5, 64), np.float32)}, "no array named 'x'"), ({"x": np.ones((5, 64), np.complex64)}, "complex64"),
     ({"x": np.ones((5, 63), np.float32)}, "shape")],
)  # fmt: skip
def test_data_that_does_not_fit_is_named(array: dict[str, np.ndarray], words: str, tmp_path: Path) -> None:
    source = _saved(_LARGE, tmp_path)
    np.savez(tmp_path / "data.npz", **array)
    with pytest.raises(DataError, match=words):
        rewrite_model(source, tmp_path / "out.onnx", target="10", data=tmp_path / "data.npz")
