"""3D U-Net for volumes (Isensee et al. 2018, arXiv:1809.10486), as MLPerf Inference uses it for KiTS19."""

from itertools import pairwise

import torch
from torch import Tensor, nn


class DoubleConv(nn.Sequential):
    """Twice: 3×3×3 convolution, instance normalisation, ReLU; the first convolution has the stride."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv3d(channels, out, 3, stride, padding=1, bias=False),
            nn.InstanceNorm3d(out, affine=True),
            nn.ReLU(),
            nn.Conv3d(out, out, 3, padding=1, bias=False),
            nn.InstanceNorm3d(out, affine=True),
            nn.ReLU(),
        )


class UNet3D(nn.Module):
    """A strided way down, a transposed way up, maps of equal size joined."""

    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        steps = list(pairwise(widths))
        self.first = DoubleConv(1, widths[0])
        self.down = nn.ModuleList(DoubleConv(fine, coarse, 2) for fine, coarse in steps)
        self.up = nn.ModuleList(nn.ConvTranspose3d(coarse, fine, 2, 2) for fine, coarse in reversed(steps))
        self.join = nn.ModuleList(DoubleConv(2 * fine, fine) for fine, _ in reversed(steps))
        self.last = nn.Conv3d(widths[0], classes, 1)

    def forward(self, volume: Tensor) -> Tensor:
        """[N, 1, D, H, W] → class logits [N, classes, D, H, W]; sides are multiples of 2^(levels − 1)."""
        maps = [self.first(volume)]
        for down in self.down:
            maps.append(down(maps[-1]))
        x = maps.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), maps.pop()], dim=1))
        return self.last(x)


def build(widths: list[int], classes: int) -> UNet3D:
    """KiTS19: widths 32, 64, 128, 256, 320, 320; background, kidney, tumour."""
    return UNet3D(widths, classes)
