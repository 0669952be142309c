"""Tiny networks in PyTorch that export to the patterns of their large kin; for tests and measurements."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """A ResNet in small: padded and strided convolutions with batch normalisation, skips, a mean, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.ZeroPad2d(1), nn.Conv2d(3, 16, 3, 2, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.one = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Dropout(0.1))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem((x - 0.5) / 0.25)
        x = torch.relu(x + self.two(self.one(x)))
        return functional.log_softmax(self.head(x.mean((2, 3), keepdim=True).flatten(1)), 1)


class Mobile(nn.Module):
    """Depthwise convolutions, SiLU, hard swish and a squeeze gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 12, 3, 2, 1)
        self.deep = nn.Sequential(nn.Conv2d(12, 12, 3, 1, 1, groups=12), nn.BatchNorm2d(12), nn.Hardswish())
        self.gate = nn.Conv2d(12, 12, 1)
        self.last = nn.Sequential(nn.Conv2d(12, 20, 1), nn.GroupNorm(4, 20))

    def forward(self, x: Tensor) -> Tensor:
        x = self.deep(functional.silu(self.first(x)))
        x = x * torch.sigmoid(self.gate(functional.adaptive_avg_pool2d(x, 1)))
        return self.last(x)


class Transformer(nn.Module):
    """An encoder layer: embeddings, attention with a mask, layer normalisation by hand, GELU both ways."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(100, width), heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.scale, self.shift = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))
        self.up, self.down, self.norm = nn.Linear(width, 128), nn.Linear(128, width), nn.LayerNorm(width)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids)
        q, k, v = self._split(self.q(x)), self._split(self.k(x)), self._split(self.v(x))
        scores = q @ k.transpose(-1, -2) / 4.0 + (1.0 - mask[:, None, None, :].float()) * -10000.0
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape[0], x.shape[1], -1)
        x = x + self.out(mixed)
        off = x - x.mean(-1, keepdim=True)
        x = off / torch.sqrt((off * off).mean(-1, keepdim=True) + 1e-5) * self.scale + self.shift
        return self.norm(x + self.down(functional.gelu(self.up(x))) + functional.gelu(x, approximate="tanh"))


def networks() -> dict[str, tuple[nn.Module, dict[str, Tensor]]]:
    """Each network, seeded and out of training, with inputs."""
    torch.manual_seed(0)
    image = {"x": torch.randn(2, 3, 32, 32)}
    text = {"ids": torch.randint(0, 100, (2, 12)), "mask": torch.ones(2, 12, dtype=torch.int64)}
    made = {
        "residual": (Residual(), image),
        "mobile": (Mobile(), image),
        "transformer": (Transformer(), text),
    }
    for network, _ in made.values():
        network.eval()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -0.5, 0.5)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
    return made


def export(name: str, path: Path, exporter: str, opset: int) -> None:
    """Write the network as ONNX with PyTorch's `dynamo` or `script` exporter, axes dynamic, unoptimised."""
    network, inputs = networks()[name]
    batch = {key: {0: "N", **({1: "S"} if key in ("ids", "mask") else {})} for key in inputs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "script":
            torch.onnx.export(
                network, tuple(inputs.values()), path, dynamo=False, opset_version=opset,
                input_names=list(inputs), output_names=["y"], dynamic_axes=batch, do_constant_folding=False,
            )  # fmt: skip
            return
        axes = {key: {0: torch.export.Dim("N"), **({1: torch.export.Dim("S")} if len(shape) > 1 else {})}
                for key, shape in batch.items()}  # fmt: skip
        torch.onnx.export(
            network, tuple(inputs.values()), path, dynamo=True, opset_version=opset, verbose=False,
            optimize=False, input_names=list(inputs), output_names=["y"], dynamic_shapes=axes,
            external_data=False,
        )  # fmt: skip
