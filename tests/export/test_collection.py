"""Every tiny variant: exported, equal to PyTorch, built with TensorRT-RTX on the CPU, costs as stated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from tests.support.model_cost import cost
from trtopt.device.ort.reference import open_reference
from trtopt.errors import BackendMissingError
from trtopt.export.export import Exported, export
from trtopt.export.source_module import Subject, calibrate_batch_norms, from_spec, tensors_of
from trtopt.export.spec import ModelSpec, files, read_spec

NAMES = [name for name, path in files().items() if read_spec(path).construct is not None]


def _subject(name: str, variant: str = "tiny") -> tuple[ModelSpec, Subject]:
    path = files()[name]
    try:
        return read_spec(path), from_spec(path, variant)
    except BackendMissingError as error:
        pytest.skip(error.problem)


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_variant_exports_equals_pytorch_and_builds_with_rtx(
    name: str, exported: Callable[[str, str], Exported]
) -> None:
    spec, subject = _subject(name)
    made = exported(name, subject.exporter)
    assert len(made.checks) == (2 if subject.axes else 1)
    assert made.opset == spec.opset
    model = onnx.load(made.path)
    assert [value.name for value in model.graph.input] == [entry.name for entry in spec.inputs]
    assert [value.name for value in model.graph.output] == list(spec.outputs)
    named = {value.name for value in model.graph.value_info}
    assert all(
        output in named | set(spec.outputs) for node in model.graph.node for output in node.output if output
    )
    rtx = pytest.importorskip("rtx", reason="tensorrt_rtx is not installed", exc_type=ImportError)
    assert rtx.build(made.path, subject.inputs, subject.axes, spec.variants["tiny"].sizes) == []


DEEP = ("efficientnet-b0", "minigo", "resnet50")


@pytest.mark.parametrize(
    ("name", "variant"), [*((name, "tiny") for name in NAMES), *((name, "full") for name in DEEP)]
)
def test_seeded_weights_give_outputs_that_depend_on_the_input(name: str, variant: str) -> None:
    _, subject = _subject(name, variant)
    inputs = subject.example({axis: entry.near(3) for axis, entry in subject.axes.items()})
    with torch.no_grad():
        first = tensors_of(subject.module(*(torch.from_numpy(array) for array in inputs.values())))[0].numpy()
    assert np.isfinite(first).all()
    spread = np.std(first.astype(np.float64), axis=0).max()
    assert spread > 2e-2 * np.abs(first).max(), "a comparison of constants would prove nothing"


def test_settling_gives_each_norm_what_reaches_it_and_changes_nothing_else() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.SiLU(), nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5)
    ).eval()
    parameters = [value.clone() for value in module.parameters()]
    x = 1e-2 * torch.randn(4, 3, 16, 16)
    calibrate_batch_norms(module, [x])
    for norm, out in ((module[1], module[:2](x)), (module[4], module(x))):
        # A norm behind another saw it divide by the biased deviation of 784 values, 6e-4 smaller.
        torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(norm.num_features), atol=1e-3, rtol=0)
        known = norm.running_var / (norm.running_var + norm.eps)  # what eps leaves of a variance of 1
        torch.testing.assert_close(out.var((0, 2, 3)), known, atol=0, rtol=2e-3)
    assert (module[1].momentum, module[4].momentum) == (0.3, 0.1)
    assert not any(one.training for one in module.modules())
    assert all(torch.equal(old, new) for old, new in zip(parameters, module.parameters(), strict=True))


@pytest.mark.parametrize("variant", ["tiny", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_parameters_and_flops_are_those_that_the_file_states(name: str, variant: str) -> None:
    path = files()[name]
    spec = read_spec(path)
    found = cost(path, spec, variant)
    assert (spec.variants[variant].parameters, spec.variants[variant].flops) == (
        found.parameters,
        found.flops,
    )


@pytest.mark.parametrize("name", ["resnet50", "bert-base", "rnnt-encoder", "dlrm-dcnv2", "gpt-prefill"])
def test_the_older_exporter_gives_the_same_model(name: str, exported: Callable[[str, str], Exported]) -> None:
    assert exported(name, "torchscript").opset == 17


def test_two_exports_are_the_same_bytes(tmp_path: Path) -> None:
    made = [
        export(_subject("vit-b16")[1], tmp_path / name, open_reference).path for name in ("a.onnx", "b.onnx")
    ]
    assert made[0].read_bytes() == made[1].read_bytes()


def test_weights_outside_the_file_are_the_same_weights(tmp_path: Path) -> None:
    inside = export(_subject("resnet50")[1], tmp_path / "inside.onnx", open_reference)
    outside = export(_subject("resnet50")[1], tmp_path / "outside.onnx", open_reference, external_data=True)
    assert outside.external == tmp_path / "outside.onnx.data"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "inside.onnx",
        "outside.onnx",
        "outside.onnx.data",
    ]
    first, second = (
        {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(entry.path).graph.initializer}
        for entry in (inside, outside)
    )
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_nodes_are_named_after_their_modules(tmp_path: Path) -> None:
    exported = export(_subject("resnet50")[1], tmp_path / "m.onnx", open_reference)
    names = [node.name for node in onnx.load(exported.path).graph.node]
    assert {"conv1/Conv", "layer2.0.downsample.0/Conv", "fc/Gemm"} <= set(names)
    assert len(set(names)) == len(names)


def test_the_file_holds_no_path_of_this_machine(tmp_path: Path) -> None:
    exported = export(_subject("bert-base")[1], tmp_path / "m.onnx", open_reference)
    assert str(files()["bert-base"].parent).encode() not in exported.path.read_bytes()


def test_decoding_continues_what_the_prompt_began() -> None:
    """One token decoded with the prompt's cache gives the logits of the prompt with that token added."""
    prompt, step = _subject("gpt-prefill")[1].module, _subject("gpt-decode")[1].module
    ids = torch.randint(0, 100, (2, 9))
    with torch.no_grad():
        _, keys, values = prompt(ids[:, :8])
        wanted = prompt(ids)
        found = step(ids[:, 8:], keys, values)
    for first, second in zip(wanted, found, strict=True):
        torch.testing.assert_close(second, first, rtol=1e-4, atol=1e-5)


def test_a_changed_tolerance_is_respected(tmp_path: Path) -> None:
    subject = replace(_subject("vit-b16")[1], tolerance=0.0)
    with pytest.raises(Exception, match="differs from PyTorch"):
        export(subject, tmp_path / "m.onnx", open_reference)
    assert list(tmp_path.iterdir()) == []
