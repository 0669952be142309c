"""What `trtopt export` says to models, checkpoints and files that are wrong; nothing half-written stays."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from click.testing import CliRunner

import trtopt
from trtopt.cli.models import export as command
from trtopt.errors import (
    BackendMissingError,
    FixedBatchError,
    ModelError,
    OutputError,
    TrtoptError,
    UnsupportedOpError,
    UsageError,
)
from trtopt.export import source_module

BROKEN = Path(__file__).with_name("broken.py")


def _line(text: str) -> int:
    lines = BROKEN.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def _run(*arguments: object) -> str:
    """The command's output; its error is raised."""
    result = CliRunner().invoke(command, [str(entry) for entry in arguments], standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.output


def _error(kind: type[TrtoptError], tmp_path: Path, *arguments: object) -> str:
    with pytest.raises(kind) as caught:
        _run(*arguments, "-o", tmp_path / "out.onnx")
    assert not list(tmp_path.glob("*out.onnx*")), "a file was left behind"
    return str(caught.value)


def test_a_callable_of_the_user_is_exported(tmp_path: Path) -> None:
    said = _run("broken:good", "-o", tmp_path / "m.onnx")
    assert "agrees with PyTorch at batch 1" in said
    assert "agrees with PyTorch at batch 3" in said
    model = onnx.load(tmp_path / "m.onnx")
    assert (model.graph.input[0].name, model.graph.output[0].name) == ("x", "output")


def test_a_callable_may_name_its_axes(tmp_path: Path) -> None:
    said = _run("broken:varying", "-o", tmp_path / "m.onnx")
    assert "batch 1, length 7" in said
    assert "batch 3, length 19" in said


def _axes(path: Path) -> list[str | int]:
    return [
        axis.dim_param or axis.dim_value for axis in onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    ]


def test_the_first_axis_is_the_batch_where_others_are_named(tmp_path: Path) -> None:
    said = _run("broken:names_the_sequence", "-o", tmp_path / "m.onnx")
    assert "agrees with PyTorch at batch 3, seq" in said
    assert _axes(tmp_path / "m.onnx") == ["batch", "seq"]


def test_a_batch_that_was_fixed_on_request_becomes_dynamic_as_build_says(tmp_path: Path) -> None:
    _run("broken:fixes_the_batch", "-o", tmp_path / "m.onnx")
    assert _axes(tmp_path / "m.onnx") == [2, "seq"]
    wanted = {"batch": 3, "axes": {"seq": 7}, "backend": "onnxruntime"}
    with pytest.raises(FixedBatchError) as caught:
        trtopt.build(tmp_path / "m.onnx", tmp_path / "engines", **wanted)
    assert "--dynamic-batch" in caught.value.remedy
    trtopt.rewrite(tmp_path / "m.onnx", tmp_path / "d.onnx", dynamic_batch=True)
    assert _axes(tmp_path / "d.onnx") == ["batch", "seq"]
    trtopt.build(tmp_path / "d.onnx", tmp_path / "engines", **wanted)


@pytest.mark.parametrize(
    "callable_", ["names_no_input", "names_no_axis", "names_an_axis_by_a_number", "names_no_axes"]
)
def test_axes_that_there_are_not_are_refused(callable_: str, tmp_path: Path) -> None:
    assert "third element" in _error(UsageError, tmp_path, f"broken:{callable_}")


@pytest.mark.parametrize(
    ("callable_", "outputs"), [("tree", ["output_0", "output_1", "output_2"]), ("in_bf16", ["output"])]
)
def test_outputs_may_be_nested_and_inputs_of_bf16(callable_: str, outputs: list[str], tmp_path: Path) -> None:
    _run(f"broken:{callable_}", "-o", tmp_path / "m.onnx")
    assert [one.name for one in onnx.load(tmp_path / "m.onnx").graph.output] == outputs


def test_an_unknown_name_suggests_the_nearest(tmp_path: Path) -> None:
    assert "did you mean 'resnet50'" in _error(UsageError, tmp_path, "resnet-50")


def test_an_unknown_variant_lists_those_there_are(tmp_path: Path) -> None:
    assert "full, tiny" in _error(UsageError, tmp_path, "resnet50", "--variant", "huge")


def test_a_callable_that_raises_is_named_with_its_line(tmp_path: Path) -> None:
    said = _error(UsageError, tmp_path, "broken:raises")
    assert "RuntimeError: the weights are at home" in said
    assert f"broken.py:{_line('the weights are at home')} in raises" in said


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("broken:only_a_module", "returned a Linear"),
        ("broken:wrong_inputs", "failed on its example inputs"),
        ("broken:nothing", "no callable 'nothing'"),
        ("broken:no_samples", "[0, 4]"),
        ("broken:silent", "returned no tensor"),
        ("broken:not_a_number", "NaN throughout"),
        ("no_such_module:f", "no module named 'no_such_module'"),
    ],
)
def test_a_callable_that_is_wrong_is_told_why(reference: str, said: str, tmp_path: Path) -> None:
    assert said in _error(UsageError, tmp_path, reference)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_an_operator_that_cannot_be_exported_is_named_with_its_line(exporter: str, tmp_path: Path) -> None:
    said = _error(UnsupportedOpError, tmp_path, "broken:unsupported", "--exporter", exporter)
    assert "strange" in said
    assert f"broken.py:{_line('the line that an error should name')}" in said
    assert "module '1.0'" in said


def test_an_axis_that_a_constant_fixes_is_found_with_its_line(tmp_path: Path) -> None:
    said = _error(ModelError, tmp_path, "broken:fixed_view")
    assert "axis 'batch' was fixed at 2" in said
    assert f"broken.py:{_line('y.view(2, 8)')}" in said


def test_an_axis_that_torch_export_fixes_is_found_with_its_line(tmp_path: Path) -> None:
    said = _error(ModelError, tmp_path, "broken:fixed_by_branch")
    assert "axis 'batch' was fixed at 2" in said
    assert f"broken.py:{_line('if x.shape[0] == 2')}" in said


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_an_axis_that_tracing_fixes_is_found_with_its_line_or_node(exporter: str, tmp_path: Path) -> None:
    said = _error(ModelError, tmp_path, "broken:fixed_by_tracing", "--exporter", exporter)
    assert "axis 'batch' was fixed at 2 by " in said
    assert (f"broken.py:{_line('int(x.shape[0])')}" if exporter == "dynamo" else "'1/Reshape'") in said


BRANCHES = ["sum", "item", "integer", "array", "list", "member", "size"]


@pytest.mark.parametrize("what", BRANCHES)
def test_a_branch_that_tracing_would_lose_is_refused_with_its_line(what: str, tmp_path: Path) -> None:
    kind = "an" if what[0] in "ai" else "a"
    arguments = (f"broken:branches_on_{kind}_{what}", "--exporter", "torchscript")
    said = _error(ModelError, tmp_path, *arguments)
    line = "if self.decide(x)" if what in ("sum", "size") else f"# the {what} decides"
    assert f"broken.py:{_line(line)} (a tensor becomes a " in said
    assert "torch.where" in said
    assert "--allow-traced-branches" in said


def test_a_branch_in_generated_code_is_refused_too(tmp_path: Path) -> None:
    said = _error(ModelError, tmp_path, "broken:branches_in_generated_code", "--exporter", "torchscript")
    assert "<string>:2 (a tensor becomes a Python boolean)" in said


def test_a_branch_that_was_requested_is_traced_with_pytorchs_warning(tmp_path: Path) -> None:
    with pytest.warns(torch.jit.TracerWarning, match="Python boolean"):
        said = _run(
            "broken:branches_on_a_size",
            *("--exporter", "torchscript", "--allow-traced-branches", "-o", tmp_path / "m.onnx"),
        )
    assert "agrees with PyTorch at batch 3" in said


@pytest.mark.parametrize("what", BRANCHES[:3])
def test_a_branch_on_values_is_refused_by_torch_export_with_its_line(what: str, tmp_path: Path) -> None:
    kind = "an" if what[0] in "ai" else "a"
    said = _error(ModelError, tmp_path, f"broken:branches_on_{kind}_{what}")
    line = "# the integer decides" if what == "integer" else "if self.decide(x)"
    assert f"broken.py:{_line(line)} depends on a tensor's values" in said
    assert "torch.where" in said
    assert "torchscript" not in said


@pytest.mark.parametrize(
    ("model", "exporter"), [("where", "dynamo"), ("where", "torchscript"), ("cond", "dynamo")]
)
def test_what_is_recommended_in_place_of_a_branch_is_exported(
    model: str, exporter: str, tmp_path: Path
) -> None:
    assert "agrees" in _run(f"broken:{model}", "--exporter", exporter, "-o", tmp_path / "m.onnx")


@pytest.mark.filterwarnings("ignore:Iterating over a tensor")
def test_sizes_and_weights_that_become_numbers_are_traced(tmp_path: Path) -> None:
    said = _run("broken:harmless", "--exporter", "torchscript", "-o", tmp_path / "m.onnx")
    assert "agrees with PyTorch at batch 3" in said


def test_a_branch_that_no_tracer_sees_is_found_by_other_inputs(tmp_path: Path) -> None:
    said = _error(ModelError, tmp_path, "broken:hidden", "--exporter", "torchscript")
    assert "differs from PyTorch at batch 1, with the inputs negated:" in said


def test_outputs_that_differ_are_shown_and_no_file_is_kept(tmp_path: Path) -> None:
    said = _error(ModelError, tmp_path, "broken:differs")
    assert "output 'output'" in said
    assert re.search(r"the worst is at \(0, 0\): 1\.0, PyTorch gives 0\.0", said)


def test_an_older_file_survives_a_failed_export(tmp_path: Path) -> None:
    _run("broken:good", "-o", tmp_path / "out.onnx")
    older = (tmp_path / "out.onnx").read_bytes()
    with pytest.raises(ModelError):
        _run("broken:differs", "-o", tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == older


def test_an_output_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="there is no folder"):
        _run("broken:good", "-o", tmp_path / "file" / "out.onnx")


def _checkpoint(tmp_path: Path, change: dict[str, object | None]) -> Path:
    state: dict[str, object] = dict(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).state_dict())
    for key, value in change.items():
        state.pop(key) if value is None else state.update({key: value})
    torch.save(state, tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_checkpoint_goes_into_the_file(suffix: str, tmp_path: Path) -> None:
    weights = torch.full((4, 8), 3.0)
    state = {"0.weight": weights, "0.bias": torch.zeros(4)}
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pt":
        torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, path)
    else:
        pytest.importorskip("safetensors.torch").save_file(state, path)
    _run("broken:good", "-o", tmp_path / "m.onnx", "--checkpoint", path)
    found = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer
    }
    assert (found["0.weight"] == 3.0).all()


def test_keys_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    path = _checkpoint(tmp_path, {"0.bias": None, "head.weight": torch.ones(1)})
    said = _error(UsageError, tmp_path, "broken:good", "--checkpoint", path)
    assert 'Missing key(s) in state_dict: "0.bias"' in said
    assert 'Unexpected key(s) in state_dict: "head.weight"' in said
    assert "--no-strict" in said


def test_long_lists_of_keys_are_cut_and_say_so(tmp_path: Path) -> None:
    path = _checkpoint(tmp_path, {f"head.{number}": torch.ones(1) for number in range(500)})
    said = _error(UsageError, tmp_path, "broken:good", "--checkpoint", path)
    assert len(said) < 2000
    assert " …\n" in said
    module = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(20)))
    path = _checkpoint(tmp_path, {f"{number}.weight": torch.ones(9) for number in range(20)})
    with pytest.raises(UsageError, match="\n  … and 12 more\n"):
        source_module.load_checkpoint(module, path, strict=False)


def test_no_strict_is_no_remedy_where_no_key_fits(tmp_path: Path) -> None:
    path = _checkpoint(tmp_path, {"0.bias": None, "0.weight": None, "head": torch.ones(1)})
    assert "--no-strict" not in _error(UsageError, tmp_path, "broken:good", "--checkpoint", path)


def test_no_strict_loads_what_fits(tmp_path: Path) -> None:
    path = _checkpoint(tmp_path, {"0.bias": None, "head.weight": torch.ones(1)})
    assert "agrees" in _run("broken:good", "-o", tmp_path / "m.onnx", "--checkpoint", path, "--no-strict")


def test_a_checkpoint_of_other_shapes_is_refused_even_so(tmp_path: Path) -> None:
    path = _checkpoint(tmp_path, {"0.weight": torch.ones(4, 9)})
    said = _error(UsageError, tmp_path, "broken:good", "--checkpoint", path, "--no-strict")
    assert "size mismatch for 0.weight" in said
    assert "--no-strict" not in said


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("code was run",))


def test_a_checkpoint_cannot_run_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _checkpoint(tmp_path, {"evil": _Evil()})
    assert "read safely" in _error(UsageError, tmp_path, "broken:good", "--checkpoint", path)
    assert "code was run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content"), [("w.pt", b"no checkpoint"), ("w.safetensors", b"neither"), ("w.pt", b"")]
)
def test_a_file_that_is_no_checkpoint_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert name in _error(UsageError, tmp_path, "broken:good", "--checkpoint", tmp_path / name)


def test_a_missing_torch_prints_the_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> object:
        return None if name == "torch" else object()

    monkeypatch.setattr(source_module.importlib.util, "find_spec", find_spec)
    said = _error(BackendMissingError, tmp_path, "resnet50", "--variant", "tiny")
    assert "torch is not installed" in said
    assert "pip install torch onnxscript safetensors" in said


def test_help_needs_no_torch() -> None:
    code = (
        "import sys, trtopt.cli.models\n"
        "assert not {'torch', 'onnx', 'onnxruntime', 'numpy'} & set(sys.modules), set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
