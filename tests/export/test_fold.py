"""BatchNorm folded before weights are rounded: what is folded, and what is left alone."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trtopt.device.ort.reference import open_reference
from trtopt.export.export import export
from trtopt.export.exporters import fold_batch_norms
from trtopt.export.source_module import from_spec
from trtopt.export.spec import files


class Pair(nn.Module):
    """A convolution and its norm; `how` they are used besides."""

    def __init__(self, how: str = "", conv: nn.Module | None = None) -> None:
        super().__init__()
        self.how = how
        self.conv = conv or nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        for values in (self.norm.running_mean, self.norm.running_var, self.norm.weight, self.norm.bias):
            assert values is not None
            nn.init.uniform_(values, 0.5, 2.0)
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.how == "twice":
            y = self.conv(y)
        z: Tensor = self.norm(y)
        return z + y if self.how == "read beside" else z


def folded(module: Pair) -> Pair:
    """The module folded; what it computes has not changed."""
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    was, found = module(x), copy.deepcopy(module)
    fold_batch_norms(found, [x])
    torch.testing.assert_close(found(x), was, rtol=1e-5, atol=1e-5)
    return found


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1, bias=False, groups=4),
        nn.ConvTranspose2d(4, 4, 2, 2),
    ],
)
def test_a_norm_behind_a_convolution_is_folded(conv: nn.Module) -> None:
    assert isinstance(folded(Pair(conv=conv)).norm, nn.Identity)


@pytest.mark.parametrize("how", ["twice", "read beside"])
def test_a_convolution_that_others_use_too_is_left_alone(how: str) -> None:
    module = Pair(how)
    found = folded(module)
    assert isinstance(found.norm, nn.BatchNorm2d)
    assert torch.equal(found.conv.weight, module.conv.weight)


def test_a_weight_that_is_computed_at_each_call_is_left_alone() -> None:
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3, padding=1))
    assert isinstance(folded(Pair(conv=conv)).norm, nn.BatchNorm2d)


def test_a_module_that_does_not_run_is_left_to_the_exporter() -> None:
    module = Pair()
    fold_batch_norms(module, [torch.zeros(2, 3, 8, 8)])
    assert isinstance(module.norm, nn.BatchNorm2d)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_network_with_statistics_is_the_same_in_16_bits_as_with_its_weights_rounded_once(
    dtype: str, tmp_path: Path
) -> None:
    made = export(from_spec(files()["resnet50"], "tiny"), tmp_path / "half.onnx", open_reference, dtype=dtype)  # type: ignore[arg-type]
    assert max(check.worst for check in made.checks) < 1e-4
