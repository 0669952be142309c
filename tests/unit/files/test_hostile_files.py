"""What fuzzing found: files that once gave a traceback, a hang or wrong values."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from tests.support import examples, graphs
from tests.support.graphs import model_of, save
from tests.support.pages import resnet
from trtopt.data import open_data
from trtopt.data.feeds import seeded, specs_of
from trtopt.errors import ArtifactError, DataError, InvalidModelError, ModelError, UsageError
from trtopt.export.spec import read_spec
from trtopt.files.manifests import MANIFEST, read_manifest
from trtopt.onnxio import model_file
from trtopt.onnxio.graph_walk import check_types, graphs_of
from trtopt.onnxio.model_info import read_onnx
from trtopt.onnxio.prepare import lower_constants
from trtopt.onnxio.shape_inference import LARGE_BYTES, inferred
from trtopt.recipe import load_profile
from trtopt.records import Manifest, TensorSpec, to_json
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.targets import target_of
from trtopt.workflows.build.folder import receipts_of
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.report import collect

_DEEP = ".".join("a" * 9000)
TOML = {
    "a deep key": f"{_DEEP} = 1",
    "a deep table": f"[{_DEEP}]",
    "deep arrays": "a = " + "[" * 20_000,
    "deep inline tables": "a = " + "{a=" * 20_000,
    "a number without end": "a = " + "9" * 5000,
}


@pytest.mark.parametrize("text", TOML.values(), ids=TOML)
@pytest.mark.parametrize("read", [lambda path: load_profile(str(path)), read_spec], ids=["recipe", "spec"])
def test_toml_deeper_or_longer_than_a_person_writes_is_refused_at_once(
    tmp_path: Path, read: object, text: str
) -> None:
    file = tmp_path / "file.toml"
    file.write_text(text)
    began = time.process_time()
    with pytest.raises(UsageError):
        read(file)  # type: ignore[operator]
    assert time.process_time() - began < 5  # the parser alone takes longer for one such key


def test_dots_in_values_are_no_depth(tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    file.write_text(f'calib = "{"." * 100}"')
    assert load_profile(str(file)) == {"calib": "." * 100}


# ── models ──────────────────────────────────────────────────────────────────────────────────────────────


def _with_weight(**changes: object) -> onnx.ModelProto:
    model = model_of(
        graphs.add("x", "w"), weights=[onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")]
    )
    weight = model.graph.initializer[0]
    for name, value in changes.items():
        if name == "dims":
            del weight.dims[:]
            weight.dims.extend(value)  # type: ignore[arg-type]
        else:
            setattr(weight, name, value)
    return model


@pytest.mark.parametrize("read", [read_onnx, model_file.load])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"raw_data": b"\0" * 15}, "15 bytes, 16 are needed"),
        ({"raw_data": b"\0" * 17}, "17 bytes, 16 are needed"),
        ({"dims": (5,)}, "16 bytes, 20 are needed"),
        ({"dims": (-4,)}, "negative"),
        ({"data_type": 0}, "element type 0"),
        ({"data_type": 99}, "element type 99"),
    ],
)
def test_a_weight_whose_values_do_not_fit_its_shape_is_named(
    tmp_path: Path, changes: dict[str, object], message: str, read: object
) -> None:
    with pytest.raises(InvalidModelError, match=f"'w'.*{message}"):
        read(save(_with_weight(**changes), tmp_path / "m.onnx"))  # type: ignore[operator]


@pytest.mark.parametrize("kind", onnx.helper.get_all_tensor_dtypes())
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_weights_of_every_type_that_onnx_writes_fit_their_shapes(
    tmp_path: Path, kind: int, count: int
) -> None:
    values = [b"a"] * count if kind == onnx.TensorProto.STRING else [1] * count
    model = model_of(graphs.relu(), weights=[onnx.helper.make_tensor("w", kind, [count], values)])
    file = save(model, tmp_path / "m.onnx")
    assert model_file.load(file).proto.graph.initializer[0].name == "w"


def test_a_large_weight_whose_shape_needs_more_than_it_has_does_not_read_on_in_the_file(
    tmp_path: Path,
) -> None:
    values = np.ones(LARGE_BYTES, np.float32)
    model = model_of(graphs.relu(), weights=[onnx.numpy_helper.from_array(values, "w")])
    for length in (len(values) - 1, len(values) + 1):
        model.graph.initializer[0].dims[0] = length
        with pytest.raises(InvalidModelError, match="'w'"):
            model_file.load(save(model, tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    "entry", [("location", b"\xff\xfe"), ("offset", b"\xff"), ("offset", b"-1"), ("offset", b"x")]
)
def test_a_weight_that_refers_to_its_file_by_nonsense_is_refused(
    tmp_path: Path, entry: tuple[str, bytes]
) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 16)
    told = {"location": "w.bin", "offset": "0", "length": "16"} | {entry[0]: "#" * 40}
    model = model_of(graphs.add("x", "w"), weights=[graphs.external(told)])
    file = tmp_path / "m.onnx"
    file.write_bytes(model.SerializeToString().replace(b"#" * 40, entry[1].ljust(40, entry[1][-1:])))
    with pytest.raises(InvalidModelError):
        model_file.load(file)


@pytest.mark.parametrize("read", [read_onnx, model_file.load])
def test_a_text_that_is_none_is_refused_wherever_it_is(tmp_path: Path, read: object) -> None:
    model = model_of(graphs.relu())
    model.graph.name = "####"
    file = tmp_path / "m.onnx"
    file.write_bytes(model.SerializeToString().replace(b"####", b"\xff" * 4))
    with pytest.raises(InvalidModelError):
        read(file)  # type: ignore[operator]


def test_a_branch_with_an_output_that_is_no_tensor_cannot_be_rewritten(tmp_path: Path) -> None:
    model = graphs.branching(onnx.helper.make_node("Relu", ["x"], ["t"], name="inner"))
    for attribute in model.graph.node[-1].attribute:
        optional = onnx.helper.make_optional_type_proto(attribute.g.output[0].type)
        attribute.g.output[0].type.CopyFrom(optional)
    file = save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError):
        rewrite_model(file, tmp_path / "copy.onnx", target=target_of(examples.TENSORRT).name)
    assert [found.name for found in tmp_path.iterdir()] == ["m.onnx"]


def test_an_input_too_large_to_be_drawn_at_random_is_refused() -> None:
    model = model_of(graphs.relu(), inputs=[graphs.value("x", ("N", 2**40))])
    with pytest.raises(ModelError, match="too large to be drawn"):
        seeded(model)


def test_a_branch_with_an_output_of_a_type_that_there_is_not_is_an_invalid_model() -> None:
    model = graphs.branching(graphs.relu("x", "t", "inner"))
    model.graph.node[-1].attribute[1].g.output[0].type.tensor_type.elem_type = 128
    with pytest.raises(InvalidModelError, match="shapes cannot be inferred"):
        inferred(model)


@pytest.mark.parametrize("read", [read_onnx, model_file.load])
@pytest.mark.parametrize("where", ["output", "branch", "cast", "cast to nothing"])
def test_an_element_type_that_there_is_not_is_named_wherever_it_is(
    tmp_path: Path, where: str, read: object
) -> None:
    model = graphs.branching(onnx.helper.make_node("Cast", ["x"], ["t"], name="inner", to=1))
    branch = model.graph.node[-1].attribute[1].g
    if where == "output":
        model.graph.output[0].type.tensor_type.elem_type = 255
    elif where == "branch":
        branch.output[0].type.tensor_type.elem_type = 255
    else:
        for cast in (node for graph in graphs_of(model.graph) for node in graph.node if node.name == "inner"):
            cast.attribute[0].i = 2**32 - 1 if where == "cast" else 0
    told = "'to' of node 'inner'" if where.startswith("cast") else "tensor '"
    with pytest.raises(InvalidModelError, match=f"{told}.* has the unknown element type "):
        read(save(model, tmp_path / "m.onnx"))  # type: ignore[operator]


def test_a_functions_type_may_be_its_callers_to_say() -> None:
    cast = onnx.helper.make_node("Cast", ["x"], ["y"], name="cast")
    cast.attribute.append(onnx.AttributeProto(name="to", ref_attr_name="kind", type=onnx.AttributeProto.INT))
    opset = [onnx.helper.make_opsetid("", 17)]
    function = onnx.helper.make_function("mine", "f", ["x"], ["y"], [cast], opset, ["kind"])
    model = model_of(graphs.relu())
    model.functions.append(function)
    check_types(model, Path("m.onnx"))


def test_an_opset_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match="imports opset -"):
        read_onnx(save(model_of(graphs.relu(), opset=-(2**63)), tmp_path / "m.onnx"))


def test_an_input_of_no_known_type_is_refused() -> None:
    model = model_of(graphs.relu(), inputs=[graphs.value("x", kind=99)])
    with pytest.raises(ModelError, match="element type 99"):
        specs_of(model)


def test_a_path_that_no_file_can_have_is_a_message(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match="cannot be read"):
        read_onnx(tmp_path / ("x" * 300))


# ── results and data ────────────────────────────────────────────────────────────────────────────────────


def _manifest(folder: Path, change: object) -> Path:
    found = json.loads(to_json(examples.manifest()))
    change(found)  # type: ignore[operator]
    (folder / MANIFEST).write_text(json.dumps(found))
    return folder


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "", "..", "a\0b", "x" * 300])
@pytest.mark.parametrize("field", ["path", "log", "layers"])
def test_a_manifest_names_files_of_its_own_folder_only(tmp_path: Path, field: str, name: str) -> None:
    with pytest.raises(ArtifactError, match="is not the name of a file in the build folder"):
        read_manifest(_manifest(tmp_path, lambda found: found["engines"][0].update({field: name})))


def _several(found: Any) -> list[object]:
    return list(found["engines"][0]["plan"]["multi_profile"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found["engines"][0].update(size_bytes=10**400), "an integer of more than 64 bits"),
        (lambda found: found["engines"][0].update(size_bytes=-1), "has -1 bytes"),
        (lambda found: found["engines"].clear(), "it lists no engines"),
        (lambda found: found["engines"][0]["plan"]["shapes"].pop("x"), "no shape for input 'x'"),
        (lambda found: found["engines"][0]["plan"]["batch"].update(min=[]), "batch sizes"),
        (lambda found: found["engines"][0]["plan"]["batch"].update(min=[99]), "no range of shapes"),
        (lambda found: found["engines"][0]["plan"]["shapes"]["x"].update(opt=[1]), "no range of shapes"),
        (
            lambda found: found["engines"][0]["plan"]["multi_profile"][0]["batch"].update(min=[]),
            "batch sizes",
        ),
        (
            lambda found: found["engines"][0]["plan"]["multi_profile"][0]["shapes"].pop("x"),
            "no shape for input",
        ),
        (
            lambda found: found["engines"][0]["plan"].update(multi_profile=17 * _several(found)),
            "17 optimisation",
        ),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(tmp_path: Path, change: object, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        read_manifest(_manifest(tmp_path, change))


def test_a_layer_file_that_is_gone_is_named(tmp_path: Path) -> None:
    manifest: Manifest = examples.manifest()
    engine = msgspec.structs.replace(manifest.engines[0], layers="batch8.layers.json")
    manifest = msgspec.structs.replace(manifest, engines=(engine,))
    save(graphs.relu_model(), tmp_path / Path(manifest.onnx.path).name)
    with pytest.raises(ArtifactError, match=r"layers\.json: cannot be read"):
        receipts_of(tmp_path, manifest)


def test_groups_of_samples_of_another_length_are_refused(tmp_path: Path) -> None:
    found = json.loads(to_json(examples.report()))
    found["points"][0]["latency"]["samples"]["group"] = [0] * 9999
    file = tmp_path / "result.json"
    file.write_text(json.dumps(found))
    with pytest.raises(ArtifactError, match="columns of samples"):
        read_result(file)


@pytest.mark.parametrize("value", [10**400, 10**20, 2**64, -(2**63) - 1])
def test_an_integer_of_more_than_64_bits_is_refused(tmp_path: Path, value: int) -> None:
    found = json.loads(to_json(examples.report()))
    assert found["points"][0]["memory"]["driver_used_bytes"] is not None
    found["points"][0]["memory"]["driver_used_bytes"] = value
    file = tmp_path / "result.json"
    file.write_text(json.dumps(found))
    with pytest.raises(ArtifactError, match="an integer of more than 64 bits"):
        read_result(file)


@pytest.mark.parametrize("value", [2**64 - 1, -(2**63)])
def test_integers_of_64_bits_and_what_only_looks_longer_are_read(tmp_path: Path, value: int) -> None:
    found = json.loads(to_json(examples.report()))
    found["points"][0]["memory"]["driver_used_bytes"] = value
    found["notes"] = ["1" * 64, "of 1" + "0" * 30 + ", and"]
    found["points"][0]["latency"]["samples"]["start_ms"][0] = 0.0012345678901234567
    file = tmp_path / "result.json"
    file.write_text(json.dumps(found))
    assert read_result(file).points[0].memory.driver_used_bytes == value  # type: ignore[union-attr]


def test_a_layer_without_times_is_refused(tmp_path: Path) -> None:
    found = json.loads(to_json(examples.report()))
    found["points"][0]["layers"]["layers"][0]["ms"] = []
    file = tmp_path / "result.json"
    file.write_text(json.dumps(found))
    with pytest.raises(ArtifactError, match="a layer has no times"):
        read_result(file)


def test_a_query_that_takes_no_time_is_refused(tmp_path: Path) -> None:
    found = json.loads(to_json(examples.report()))
    samples = found["points"][0]["latency"]["samples"]
    samples["end_ms"][0] = samples["start_ms"][0]
    file = tmp_path / "result.json"
    file.write_text(json.dumps(found))
    with pytest.raises(ArtifactError, match="batch"):
        read_result(file)


@pytest.mark.parametrize(
    ("where", "value", "told"),
    [
        (("engines", 0, "furthest"), ["a stranger"], "has no layer 'a stranger'"),
        (("engines", 0, "layers", 1, "onnx_ops"), [], "has not one operator per node"),
        (("peaks", "bandwidth", "value"), 0.0, "not positive"),
        (("peaks", "flops", "int8", "value"), -1.0, "not positive"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(
    tmp_path: Path, where: tuple[Any, ...], value: object, told: str
) -> None:
    content = json.loads(to_json(resnet().profiles["profile.json"]))
    *path, last = where
    parent = content
    for step in path:
        parent = parent[step]
    parent[last] = value
    (tmp_path / "profile.json").write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match=told):
        collect(tmp_path)


def test_a_header_of_an_array_longer_than_numpy_writes_is_refused_unread(tmp_path: Path) -> None:
    """The time that NumPy takes to find that it cannot be read grows faster than its square."""
    header = b"{}" + b" " * 5000 + b"\0"
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x.npy", member)
    with pytest.raises(DataError, match=r"Header info length \(5003\) is large"):
        list(
            open_data(tmp_path / "data.npz").batches([TensorSpec(name="x", dtype="float32", shape=("N",))], 1)
        )


def test_json_that_is_no_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_bytes(b'[{"x\xff": {"array": ""}}]')
    with pytest.raises(DataError, match="not Polygraphy's JSON"):
        open_data(file)
    with pytest.raises(ArtifactError, match="holds nothing to report on"):
        collect(tmp_path)


@pytest.mark.parametrize("values", [0, 2])
def test_a_constant_without_one_value_is_refused(values: int) -> None:
    node = onnx.helper.make_node("Constant", [], ["c"], "nothing")
    for name in ("value_float", "value_int")[:values]:
        node.attribute.append(onnx.helper.make_attribute(name, 1 if name == "value_int" else 1.0))
    with pytest.raises(InvalidModelError, match=f"'nothing' has {values} values"):
        lower_constants(onnx.helper.make_graph([node], "g", [], []))
