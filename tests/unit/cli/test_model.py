"""MODEL on the command line: the errors of a wrong path, and what a usage line names."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.command_line import DIGITS
from trtopt.cli.main import cli
from trtopt.errors import InvalidModelError
from trtopt.onnxio.model_info import load_graph

READERS = ["optimize", "build", "lint", "rewrite", "cast", "quantize", "bisect", "reduce", "sweep", "tune"]
NEEDED = {
    "cast": ["-o", "out.onnx"],
    "quantize": ["-o", "out.onnx", "--precision", "int8"],
    "rewrite": ["-o", "out.onnx"],
    "bisect": ["--precision", "fp16"],
    "reduce": ["-o", "out.onnx", "--while", "fails"],
}


def refused(name: str, path: Path) -> str:
    done = CliRunner().invoke(cli, [name, str(path), *NEEDED.get(name, [])])
    assert done.exit_code == 2
    return " ".join(done.output.split())


@pytest.mark.parametrize("name", READERS)
def test_a_mistyped_file_names_the_nearest(name: str, tmp_path: Path) -> None:
    (tmp_path / "resnet50.onnx").touch()
    assert f"Did you mean {tmp_path / 'resnet50.onnx'}?" in refused(name, tmp_path / "resnet5.onnx")
    assert "Did you mean" not in refused(name, tmp_path / "other.onnx")


@pytest.mark.parametrize("name", READERS)
def test_a_folder_names_an_onnx_file_in_it(name: str) -> None:
    assert f"give an ONNX file, such as {DIGITS}" in refused(name, Path(DIGITS).parent)


@pytest.mark.parametrize(
    ("file", "remedy"),
    [
        ("net.pt", "trtopt export"),
        ("net.safetensors", "trtopt export"),
        ("net.engine", "the ONNX file that this engine was built from"),
        ("net.onnx", "export the model again"),
    ],
)
def test_a_file_of_another_format_says_what_to_do_with_it(file: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"PK\x03\x04 not a protobuf message")
    with pytest.raises(InvalidModelError, match="not an ONNX file") as caught:
        load_graph(tmp_path / file)
    assert remedy in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("line", "usage"),
    [
        (["quantize"], "trtopt quantize -o FILE --precision int8|fp8|int4 [OPTIONS] MODEL"),
        (["plan"], "trtopt plan -o FILE --slo pN=LIMIT [OPTIONS] SWEEP..."),
        (["deploy", "triton"], "trtopt deploy triton -o FOLDER [OPTIONS] SOURCE"),
        (["build"], "trtopt build [OPTIONS] [MODEL]"),
    ],
)
def test_a_usage_line_names_all_options_that_are_needed(line: list[str], usage: str) -> None:
    done = CliRunner().invoke(cli, [*line, "--help"], prog_name="trtopt")
    assert done.output.splitlines()[0] == f"Usage: {usage}"
