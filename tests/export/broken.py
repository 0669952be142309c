"""Models of a user's own, right and wrong, for the tests of bad input."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.library.custom_op("trtopt_tests::strange", mutates_args=())
def strange(x: Tensor) -> Tensor:
    return x.clone()


@strange.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return strange(x)  # the line that an error should name


class FixedView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(x)
        return y.view(2, 8)


class FixedByBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 2:
            return x + 1
        return x


class FixedByTracing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(int(x.shape[0]), 2, 4).sum(1)


class Drops(nn.Module):
    """Behaves otherwise when it is traced: what a wrong translation looks like."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (1.0 if torch.compiler.is_exporting() or torch.jit.is_tracing() else 0.0)


def _example() -> dict[str, Tensor]:
    return {"x": torch.arange(24.0).reshape(3, 8)}


def good() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU()), _example()


def varying() -> tuple[nn.Module, dict[str, Tensor], dict[str, dict[int, str]]]:
    return nn.LayerNorm(8), {"x": torch.randn(2, 5, 8)}, {"x": {0: "batch", 1: "length"}}


def unsupported() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(Strange())), _example()


def fixed_view() -> tuple[nn.Module, dict[str, Tensor]]:
    return FixedView(), {"x": torch.arange(16.0).reshape(2, 8)}


def fixed_by_branch() -> tuple[nn.Module, dict[str, Tensor]]:
    return FixedByBranch(), _example()


def fixed_by_tracing() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.Sequential(nn.Linear(8, 8), FixedByTracing()), _example()


def differs() -> tuple[nn.Module, dict[str, Tensor]]:
    return Drops(), _example()


def raises() -> None:
    raise RuntimeError("the weights are at home")


def only_a_module() -> nn.Module:
    return nn.Linear(8, 4)


def wrong_inputs() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.Linear(9, 4), _example()
