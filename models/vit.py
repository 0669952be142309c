"""Vision Transformer (Dosovitskiy et al. 2020, arXiv:2010.11929)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Pre-norm attention and feed-forward network."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden, eps=1e-6)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden, eps=1e-6)
        self.fc1 = nn.Linear(hidden, inner)
        self.fc2 = nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[N, S, hidden] → [N, S, hidden]."""
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        )
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Patches, a class token, blocks, a linear head on the class token."""

    def __init__(self, side: int, patch: int, layers: int, hidden: int, heads: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, hidden) * 0.02)
        self.blocks = nn.ModuleList(Block(hidden, heads, 4 * hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden, eps=1e-6)
        self.head = nn.Linear(hidden, classes)

    def forward(self, image: Tensor) -> Tensor:
        """[N, 3, side, side] → logits [N, classes]."""
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def build(**sizes: int) -> VisionTransformer:
    """ViT-B/16 is side 224, patch 16, layers 12, hidden 768, heads 12."""
    return VisionTransformer(**sizes)
