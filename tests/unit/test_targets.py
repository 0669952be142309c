"""The table of what each TensorRT can do: one row adds a version, and no version is named elsewhere."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tests.support.paths import ROOT
from tests.support.trt_exercise import DIGITS, RTX_DUMP, builder, every_setting
from tests.support.trt_surface import Surface
from trtopt import targets
from trtopt.errors import ArtifactError, ModelError
from trtopt.onnxio.model_info import read_onnx
from trtopt.records import Backend
from trtopt.records.tensors import TYPES
from trtopt.workflows.workbench import check_opset

TABLE = ROOT / "trtopt" / "targets.py"
EXTRAS = ROOT / "trtopt" / "extras.py"  # an extra is named as a target is
# findings are those of a version
EVIDENCE = tuple(ROOT / "trtopt" / name for name in ("rewrite/rule.py", "precision/placement/evidence.py"))
_READS_TEXT = {"startswith", "partition", "split", "removeprefix"}


# ── no version elsewhere ────────────────────────────────────────────────────────────────────────────────


def versions_in(source: str) -> list[str]:
    """The places where a version of TensorRT is named, compared, or taken apart; whole sentences aside."""
    found = (node for node in ast.walk(ast.parse(source)) if _names_a_version(node))
    return [f"{node.lineno}: {ast.unparse(node)}" for node in found]  # type: ignore[attr-defined]


def _names_a_version(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return text in targets.target_names()
        case ast.Attribute(value=owner, attr="major" | "minor"):
            return ast.unparse(owner) != "os"
        case ast.Compare(ops=ops):
            is_identity = all(isinstance(op, ast.Is | ast.IsNot) for op in ops)
            return not is_identity and any(map(_is_version, [node.left, *node.comparators]))
        case ast.Call(func=ast.Attribute(value=owner, attr=method)):
            return method in _READS_TEXT and _is_version(owner)
    return False


def _is_version(node: ast.AST) -> bool:
    return any(
        (
            (isinstance(part, ast.Attribute) and part.attr in ("version", "__version__"))
            and ast.unparse(part) != "ray.__version__"
        )
        or (isinstance(part, ast.Name) and part.id == "version")
        for part in ast.walk(node)
    )


FILES = [path for path in sorted((ROOT / "trtopt").rglob("*.py")) if path not in (TABLE, EXTRAS, *EVIDENCE)]


def test_no_version_of_tensorrt_is_named_or_compared_outside_the_table() -> None:
    found = {str(path.relative_to(ROOT)): versions_in(path.read_text("utf-8")) for path in FILES}
    assert {path: places for path, places in found.items() if places} == {}


@pytest.mark.parametrize(
    "line",
    [
        'if target == "8.6": pass',
        'DEFAULT = ("10", "11")',
        'flags = {"rtx": 1}',
        "backend.version >= minimum",
        "Version(trt.__version__) < Version(least)",
        'version.startswith("8.")',
        'backend.version.partition(".")',
        "parsed(backend).major",
    ],
)
def test_a_version_that_is_named_or_compared_is_found(line: str) -> None:
    assert versions_in(line)


# ── one row adds a version ──────────────────────────────────────────────────────────────────────────────

ADDING = """
import contextlib, io, json, sys
from dataclasses import replace
from trtopt import targets

row = replace(
    targets.target_named("11"),
    name="12",
    since=(12, 0),
    computed_kernels=False,
    qdq_opsets={"int8": 21},
    stored_weights=False,
)
targets.ROWS = (*targets.ROWS, row)

from trtopt.cli.main import main

done = []
for arguments in json.loads(sys.argv[1]):
    sys.argv, printed, status = ["trtopt", *arguments], io.TextIOWrapper(io.BytesIO()), None
    with contextlib.redirect_stdout(printed):
        try:
            main()
        except SystemExit as ended:
            status = ended.code
    printed.flush()
    done.append([status, printed.buffer.getvalue().decode()])
print(json.dumps(done))
"""
"""trtopt with one row more, for all these command lines: their statuses, and what they printed."""


def run(*lines: Sequence[object]) -> list[tuple[int, str]]:
    asked = json.dumps([[str(word) for word in line] for line in lines])
    done = subprocess.run(
        [sys.executable, "-c", ADDING, asked], check=True, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8"
    )
    return [(status, printed) for status, printed in json.loads(done.stdout)]


def test_a_row_adds_a_choice_to_every_command() -> None:
    commands = ("rewrite", "quantize", "cast", "lint", "bisect")
    for command, (_, printed) in zip(commands, run(*((name, "--help") for name in commands)), strict=True):
        assert "--target [8.6|10|11|rtx|12]" in re.sub(r"\s+", " ", printed), command


def test_a_row_decides_the_rules_that_run(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    (_, listed), (_, traced) = run(
        ("rewrite", "--list", "--json", "-"),
        ("rewrite", DIGITS, "-o", out, "--target", 12, "--json", "-"),
    )
    clean = {rule["name"]: rule["clean"] for rule in json.loads(listed)}
    assert clean["tell-kernel"] == ["8.6", "12"]
    assert clean["attention-scale"] == ["10", "11", "12"]
    assert (json.loads(traced)["target"], out.is_file()) == ("12", True)


def test_a_row_decides_the_form_of_qdq(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    asked = ("quantize", DIGITS, "-o", out, "--target", 12, "--random-data", "--precision")
    (_, printed), *refused = run(
        (*asked, "int8", "--json", "-"), (*asked, "fp8"), (*asked, "int8", "--store-weights")
    )
    assert json.loads(printed)["target"] == "12"
    assert onnx.load(out).opset_import[0].version == 21
    assert [status for status, _ in refused] == [2, 2]


def test_a_row_decides_what_an_installed_version_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = replace(targets.target_named("11"), name="12", since=(12, 0), loaded_opset=26, editable_cache=False)
    monkeypatch.setattr(targets, "ROWS", (*targets.ROWS, row))
    surface = Surface("tensorrt-11.4.0.106")
    for version, opset, editable in (("11.9.0", 25, True), ("12.0.1", 26, False), ("13.1.0", 26, False)):
        surface.module.__version__ = version
        assert (builder(surface).max_opset, every_setting(surface).reproducible) == (opset, editable)
        check_opset(read_onnx(_relu(tmp_path, opset)), builder(surface))
        with pytest.raises(ModelError, match=f"newer than tensorrt {version} reads"):
            check_opset(read_onnx(_relu(tmp_path, opset + 1)), builder(surface))
    assert targets.target_of(Backend(name="tensorrt", version="12.3.0")).name == "12"
    assert targets.target_of(Backend(name="onnxruntime", version="1.23.2")).name == "12"


def _relu(folder: Path, opset: int) -> Path:
    onnx.save(_model(helper.make_node("Relu", ["x"], ["y"]), opset), folder / "relu.onnx")
    return folder / "relu.onnx"


def _model(node: onnx.NodeProto, opset: int) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("version", ["8.5.3", "garbage", ""])
def test_a_version_without_a_row_in_a_file_is_an_error_of_that_file(version: str) -> None:
    with pytest.raises(ArtifactError, match=r"is older than 8\.6"):
        targets.target_of(Backend(name="tensorrt", version=version))


def test_the_table_of_formats_in_the_documentation_is_that_of_the_rows() -> None:
    page = (ROOT / "docs" / "guides" / "typed-io.md").read_text("utf-8")
    rows = [targets.target_named(name) for name in targets.target_names()]
    head = f"| type | {' | '.join(f'`{row.name}`' for row in rows)} |"
    expected = []
    for name, dtype in TYPES.items():
        layouts = [row.io_formats.get(dtype) for row in rows]
        cells = ["-" if one is None else ", ".join(("linear", *one)) for one in layouts]
        expected.append(f"| {name} | {' | '.join(cells)} |")
    _, _, table = page.partition(head)
    assert table.splitlines()[2 : 3 + len(expected)] == [*expected, ""]


def test_the_table_of_qdq_in_the_documentation_is_that_of_the_rows() -> None:
    page = (ROOT / "docs" / "guides" / "quantize.md").read_text("utf-8")
    rows = map(targets.target_named, targets.target_names())
    expected = [
        f"| `{row.name}` | {', '.join(f'{name} ({least})' for name, least in row.qdq_opsets.items())} "
        f"| {row.documented_opset} | {'yes' if row.stored_weights else 'no'} |"
        for row in rows
    ]
    _, _, table = page.partition("| target | precisions, with the least opset | newest opset |")
    assert table.splitlines()[2 : 2 + len(expected) + 1] == [*expected, ""]


# ── what the rows say of TensorRT-RTX, asked of its parser ──────────────────────────────────────────────


def test_tensorrt_rtx_reads_operators_up_to_the_opset_of_its_row() -> None:
    trt = pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    if trt.__version__ != RTX_DUMP.partition("-")[2]:
        pytest.skip("another version of TensorRT-RTX may read more")

    def problem(op: str, opset: int, **attributes: Any) -> str | None:
        logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
        network = trt.Builder(logger).create_network(0)
        parser = trt.OnnxParser(network, logger)
        model = _model(helper.make_node(op, ["x"], ["y"], **attributes), opset)
        return None if parser.parse(model.SerializeToString()) else str(parser.get_error(0).desc())

    read = targets.target_named("rtx").operator_opset
    newest = {"Gelu": 20, "Swish": 24}
    assert [problem(op, read) for op, since in newest.items() if since <= read] == [None, None]
    assert "Plugin not found" in str(problem("BitCast", read + 1, to=TensorProto.INT32))  # of opset 26


@pytest.mark.parametrize("row", targets.ROWS, ids=lambda row: f"{row.name} since {row.since}")
def test_the_limits_of_a_row_lie_in_their_order(row: targets.Target) -> None:
    assert row.operator_opset <= row.documented_opset <= row.loaded_opset
    assert all(least <= row.documented_opset for least in row.qdq_opsets.values())
    assert set(row.precisions) & {"int8", "fp8"} <= row.qdq_opsets.keys()
