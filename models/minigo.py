"""The residual network of MiniGo (Silver et al. 2017, AlphaGo Zero, doi:10.1038/nature24270).

A tower of two-convolution residual blocks over the 19×19 board, with a policy and a value head.
"""

import torch
from torch import Tensor, nn


def conv(channels: int, out: int, kernel: int) -> nn.Sequential:
    """Convolution and BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(out)
    )


class Residual(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.first = conv(filters, filters, 3)
        self.second = conv(filters, filters, 3)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] → [N, C, H, W]."""
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class MiniGo(nn.Module):
    """Policy over every point and the pass, and the value of the position."""

    def __init__(self, board: int, planes: int, filters: int, blocks: int, value_width: int) -> None:
        super().__init__()
        self.stem = conv(planes, filters, 3)
        self.tower = nn.Sequential(*(Residual(filters) for _ in range(blocks)))
        self.policy_conv = conv(filters, 2, 1)
        self.policy = nn.Linear(2 * board**2, board**2 + 1)
        self.value_conv = conv(filters, 1, 1)
        self.value_hidden = nn.Linear(board**2, value_width)
        self.value = nn.Linear(value_width, 1)

    def forward(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Feature planes [N, planes, board, board] → probabilities [N, board²+1], value in (−1, 1) [N, 1]."""
        x = self.tower(torch.relu(self.stem(position)))
        policy = torch.softmax(self.policy(torch.relu(self.policy_conv(x)).flatten(1)), dim=-1)
        hidden = torch.relu(self.value_hidden(torch.relu(self.value_conv(x)).flatten(1)))
        return policy, torch.tanh(self.value(hidden))


def build(**sizes: int) -> MiniGo:
    """The 19×19 network of MLPerf Training has 256 filters and 19 blocks after the stem."""
    return MiniGo(**sizes)


def example(rng, sizes):
    """Feature planes of zeros and ones."""
    shape = (sizes["batch"], sizes["planes"], sizes["board"], sizes["board"])
    return {"position": rng.integers(0, 2, shape)}
