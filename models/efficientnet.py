"""EfficientNet (Tan and Le 2019, arXiv:1905.11946): depthwise convolutions, squeeze-and-excitation, SiLU."""

import torch
from torch import Tensor, nn


def conv(
    channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    """Convolution, BatchNorm and, if `active`, SiLU."""
    layers = [
        nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out, eps=1e-3),
    ]
    return nn.Sequential(*layers, nn.SiLU()) if active else nn.Sequential(*layers)


class SqueezeExcite(nn.Module):
    """Scales channels by a gate computed from their means (Hu et al. 2017, arXiv:1709.01507)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.expand = nn.Conv2d(squeezed, channels, 1)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → [N, C, H, W]."""
        return x * torch.sigmoid(self.expand(self.act(self.reduce(x.mean((2, 3), keepdim=True)))))


class MBConv(nn.Module):
    """Inverted residual: 1×1 up, depthwise, squeeze-and-excitation, 1×1 down."""

    def __init__(self, channels: int, out: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = channels * expansion
        self.residual = stride == 1 and channels == out
        self.expand = conv(channels, inner, 1) if expansion > 1 else nn.Identity()
        self.depthwise = conv(inner, inner, kernel, stride, groups=inner)
        self.se = SqueezeExcite(inner, max(1, channels // 4))
        self.project = conv(inner, out, 1, active=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → [N, out, H/stride, W/stride]."""
        y = self.project(self.se(self.depthwise(self.expand(x))))
        return x + y if self.residual else y


class EfficientNet(nn.Module):
    """`stages` are [expansion, kernel, stride, channels, blocks]."""

    def __init__(self, stages: list[list[int]], stem: int, head: int, classes: int) -> None:
        super().__init__()
        self.stem = conv(3, stem, 3, 2)
        blocks, channels = [], stem
        for expansion, kernel, stride, out, count in stages:
            for index in range(count):
                blocks.append(MBConv(channels, out, expansion, kernel, 1 if index else stride))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = conv(channels, head, 1)
        self.classifier = nn.Linear(head, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, image: Tensor) -> Tensor:
        """[N, 3, H, W] → logits [N, classes]."""
        return self.classifier(self.head(self.blocks(self.stem(image))).mean((2, 3)))


def build(stages: list[list[int]], stem: int, head: int, classes: int) -> EfficientNet:
    """B0 has seven stages, stem 32, head 1280."""
    return EfficientNet(stages, stem, head, classes)
