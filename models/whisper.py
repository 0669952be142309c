"""The encoder of Whisper (Radford et al. 2022, arXiv:2212.04356)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from vit import Block


def sinusoids(length: int, width: int) -> Tensor:
    """Sines and cosines of geometric periods: [length, width]."""
    periods = torch.exp(-math.log(10_000.0) / (width // 2 - 1) * torch.arange(width // 2))
    angles = torch.arange(length)[:, None] * periods[None]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Encoder(nn.Module):
    """Two convolutions over time, of which the second halves it, and transformer blocks."""

    def __init__(self, mels: int, frames: int, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(mels, hidden, 3, padding=1)
        self.conv2 = nn.Conv1d(hidden, hidden, 3, 2, padding=1)
        self.register_buffer("positions", sinusoids(frames // 2, hidden))
        self.blocks = nn.ModuleList(Block(hidden, heads, 4 * hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, mel: Tensor) -> Tensor:
        """Log-mel spectrogram [N, mels, frames] → [N, frames/2, hidden]."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def build(**sizes: int) -> Encoder:
    """Whisper small: 80 mels, 3000 frames, 12 layers, hidden 768, 12 heads."""
    return Encoder(**sizes)
