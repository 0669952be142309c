"""Residual network of bottleneck blocks (He et al. 2015, arXiv:1512.03385), version 1.5.

Version 1.5 puts a stage's stride in the 3×3 convolution instead of the first 1×1. Parameter names are those
of torchvision, so that its checkpoints load.
"""

import torch
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1×1 down, 3×3, 1×1 up, around a shortcut."""

    expansion = 4

    def __init__(self, channels: int, planes: int, stride: int, groups: int, group_width: int) -> None:
        super().__init__()
        out = planes * self.expansion
        width = planes * group_width // 64 * groups
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → [N, 4·planes, H/stride, W/stride]."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.relu(self.bn3(self.conv3(x)) + shortcut)


class Backbone(nn.Module):
    """The stem and the four stages; gives the output of each.

    With 32 groups of width 4 it is ResNeXt-50 32×4d (Xie et al. 2016, arXiv:1611.05431).
    """

    def __init__(self, depths: list[int], width: int, groups: int = 1, group_width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        channels, self.channels = width, []
        for stage, depth in enumerate(depths):
            inner = width * 2**stage
            blocks = []
            for block in range(depth):
                blocks.append(
                    Bottleneck(channels, inner, 2 if stage and not block else 1, groups, group_width)
                )
                channels = inner * Bottleneck.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
            self.channels.append(channels)

    def stages(self, x: Tensor) -> list[Tensor]:
        """[N, 3, H, W] → four maps at strides 4, 8, 16, 32."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        maps = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            maps.append(x)
        return maps

    def forward(self, x: Tensor) -> list[Tensor]:
        """As `stages`."""
        return self.stages(x)


class ResNet(Backbone):
    """The classifier."""

    def __init__(self, depths: list[int], width: int, classes: int) -> None:
        super().__init__(depths, width)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.channels[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] → logits [N, classes]."""
        return self.fc(torch.flatten(self.avgpool(self.stages(x)[-1]), 1))


def build(depths: list[int], width: int, classes: int) -> ResNet:
    """ResNet-50 is depths [3, 4, 6, 3], width 64."""
    return ResNet(depths, width, classes)
