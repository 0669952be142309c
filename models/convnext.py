"""ConvNeXt (Liu et al. 2022, arXiv:2201.03545)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → [N, C, H, W]."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """7×7 depthwise, LayerNorm, an inverted bottleneck of linear layers, a scale for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → [N, C, H, W]."""
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """A patch stem, four stages with a strided convolution between them, a linear head."""

    def __init__(self, depths: list[int], widths: list[int], classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0], eps=1e-6)]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            if stage:
                layers += [
                    ChannelNorm(widths[stage - 1], eps=1e-6),
                    nn.Conv2d(widths[stage - 1], width, 2, 2),
                ]
            layers += [Block(width) for _ in range(depth)]
        self.features = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(widths[-1], eps=1e-6)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, image: Tensor) -> Tensor:
        """[N, 3, H, W] → logits [N, classes]."""
        return self.head(self.norm(self.features(image).mean((2, 3))))


def build(depths: list[int], widths: list[int], classes: int) -> ConvNeXt:
    """ConvNeXt-T has depths [3, 3, 9, 3] and widths [96, 192, 384, 768]."""
    return ConvNeXt(depths, widths, classes)
