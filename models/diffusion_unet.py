"""The denoising U-Net of latent diffusion (Rombach et al. 2021, arXiv:2112.10752) of Stable Diffusion 1."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """Two 3×3 convolutions, the time added between them."""

    def __init__(self, channels: int, out: int, time: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.norm2 = nn.GroupNorm(groups, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """[N, C, H, W] and [N, time] → [N, out, H, W]."""
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


class Attention(nn.Module):
    """Attention of `x` to `context`, which is `x` itself for self-attention."""

    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(context, width, bias=False)
        self.value = nn.Linear(context, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """[N, S, width] and [N, T, context] → [N, S, width]."""
        query, key, value = (
            self._split(self.query(x)),
            self._split(self.key(context)),
            self._split(self.value(context)),
        )
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Transformer(nn.Module):
    """Self-attention over the image, cross-attention to the text, a gated feed-forward network."""

    def __init__(self, width: int, context: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, width, eps=1e-6)
        self.enter = nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own = Attention(width, width, heads)
        self.cross = Attention(width, context, heads)
        self.gated = nn.Linear(width, 8 * width)
        self.out = nn.Linear(4 * width, width)
        self.leave = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """[N, C, H, W] and [N, T, context] → [N, C, H, W]."""
        y = self.enter(self.norm(x))
        rows = y.flatten(2).transpose(1, 2)
        own = self.norms[0](rows)
        rows = rows + self.own(own, own)
        rows = rows + self.cross(self.norms[1](rows), context)
        linear, gate = self.gated(self.norms[2](rows)).chunk(2, dim=-1)
        rows = rows + self.out(linear * F.gelu(gate))
        return x + self.leave(rows.transpose(1, 2).unflatten(2, y.shape[2:]))


class Stage(nn.Module):
    """A residual block and, where the level attends, a transformer."""

    def __init__(
        self, channels: int, out: int, time: int, context: int, heads: int, groups: int, attend: bool
    ) -> None:
        super().__init__()
        self.residual = Residual(channels, out, time, groups)
        self.transformer = Transformer(out, context, heads, groups) if attend else None

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """[N, C, H, W] → [N, out, H, W]."""
        x = self.residual(x, time)
        return x if self.transformer is None else self.transformer(x, context)


class DiffusionUNet(nn.Module):
    """Predicts the noise in a latent image at a time step, given a text."""

    def __init__(self, widths: list[int], blocks: int, context: int, heads: int, groups: int) -> None:
        super().__init__()
        time = 4 * widths[0]
        shared = (time, context, heads, groups)
        self.frequencies = widths[0] // 2
        self.time = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(4, widths[0], 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        skips, channels, last = [widths[0]], widths[0], len(widths) - 1
        for level, width in enumerate(widths):
            self.down.append(nn.ModuleList())
            for _ in range(blocks):
                self.down[level].append(Stage(channels, width, *shared, attend=level != last))
                channels = width
                skips.append(width)
            if level != last:
                self.shrink.append(nn.Conv2d(width, width, 3, 2, padding=1))
                skips.append(width)
        self.middle = nn.ModuleList(
            [Stage(channels, channels, *shared, attend=index == 0) for index in range(2)]
        )
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for level in range(last, -1, -1):
            self.up.append(nn.ModuleList())
            for _ in range(blocks + 1):
                stage = Stage(channels + skips.pop(), widths[level], *shared, attend=level != last)
                self.up[-1].append(stage)
                channels = widths[level]
            if level:
                self.grow.append(nn.Conv2d(channels, channels, 3, padding=1))
        self.norm = nn.GroupNorm(groups, channels)
        self.leave = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, latent: Tensor, step: Tensor, context: Tensor) -> Tensor:
        """Latent [N, 4, H, W], time step [N], text [N, T, context] → noise [N, 4, H, W]."""
        time = self.time(self.embed(step).to(latent.dtype))
        x = self.enter(latent)
        maps = [x]
        for level, stages in enumerate(self.down):
            for stage in stages:
                x = stage(x, time, context)
                maps.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](x)
                maps.append(x)
        for stage in self.middle:
            x = stage(x, time, context)
        for level, stages in enumerate(self.up):
            for stage in stages:
                x = stage(torch.cat([x, maps.pop()], dim=1), time, context)
            if level < len(self.grow):
                x = self.grow[level](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.leave(F.silu(self.norm(x)))

    def embed(self, step: Tensor) -> Tensor:
        """Cosines and sines of the time step in FP32: [N] → [N, widths[0]]."""
        place = torch.arange(self.frequencies, device=step.device, dtype=torch.float32)
        angles = step.float()[:, None] * torch.exp(-math.log(10_000.0) / self.frequencies * place)
        return torch.cat([angles.cos(), angles.sin()], dim=-1)


def build(widths: list[int], blocks: int, context: int, heads: int, groups: int) -> DiffusionUNet:
    """Stable Diffusion 1.x: widths 320, 640, 1280, 1280, 2 blocks, context 768, 8 heads, 32 groups."""
    return DiffusionUNet(widths, blocks, context, heads, groups)
