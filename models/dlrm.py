"""DLRM (Naumov et al. 2019, arXiv:1906.00091) and DLRM-DCNv2 (Wang et al. 2020, arXiv:2008.13535).

The embedding tables are one table; every feature's indices are shifted by the rows before it. One Gather
replaces one per feature, and the sum over a feature's several indices is one product with a 0/1 matrix.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

CRITEO_ROWS = [
    40_000_000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40_000_000, 3067956, 405282, 10,
    2209, 11938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590152, 12973, 108, 36,
]  # fmt: skip
"""Rows of each table in MLPerf's Criteo 1 TB set."""


def table_rows(max_rows: int, features: int) -> list[int]:
    """Rows of the first `features` tables, none larger than `max_rows`."""
    return [min(rows, max_rows) for rows in CRITEO_ROWS[:features]]


def mlp(widths: list[int], *, last_active: bool) -> nn.Sequential:
    """Linear layers with ReLU between them, and after the last if `last_active`."""
    layers: list[nn.Module] = []
    for first, second in pairwise(widths):
        layers += [nn.Linear(first, second), nn.ReLU()]
    return nn.Sequential(*(layers if last_active else layers[:-1]))


class Tables(nn.Module):
    """All embedding tables as one; `hots` says how many indices each feature has."""

    def __init__(self, rows: list[int], hots: list[int], width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(sum(rows), width)
        starts = torch.tensor([sum(rows[:feature]) for feature in range(len(rows))], dtype=torch.int64)
        feature_of = torch.arange(len(hots)).repeat_interleave(torch.tensor(hots), output_size=sum(hots))
        self.register_buffer("shift", starts[feature_of], persistent=False)
        pool = (feature_of[None] == torch.arange(len(hots))[:, None]).float()
        self.register_buffer("pool", None if len(hots) == sum(hots) else pool, persistent=False)

    def forward(self, indices: Tensor) -> Tensor:
        """Indices [N, sum of hots] → pooled vectors [N, features, width]."""
        rows = self.table(indices + self.shift)
        return rows if self.pool is None else self.pool @ rows


class Pairs(nn.Module):
    """The dot products of all pairs of vectors, behind the dense vector."""

    def __init__(self, vectors: int) -> None:
        super().__init__()
        low = torch.tensor([i * vectors + j for i in range(vectors) for j in range(i)], dtype=torch.int64)
        self.register_buffer("low", low, persistent=False)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """[N, width] and [N, features, width] → [N, width + pairs]."""
        vectors = torch.cat([dense[:, None], sparse], dim=1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)
        return torch.cat([dense, products[:, self.low]], dim=1)


class Cross(nn.Module):
    """Low-rank cross layers: x ← x₀ · (V W x + b) + x."""

    def __init__(self, width: int, layers: int, rank: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(rank, width) for _ in range(layers))

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """[N, width] and [N, features, width] → [N, (features+1)·width]."""
        first = torch.cat([dense[:, None], sparse], dim=1).flatten(1)
        x = first
        for down, up in zip(self.down, self.up, strict=True):
            x = first * up(down(x)) + x
        return x


class DLRM(nn.Module):
    """Dense features through an MLP, categorical ones through tables, both together through another MLP."""

    def __init__(self, tables: Tables, bottom: nn.Module, interaction: nn.Module, top: nn.Module) -> None:
        super().__init__()
        self.bottom, self.tables, self.interaction, self.top = bottom, tables, interaction, top

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        """[N, 13] and [N, sum of hots] → click logits [N, 1]."""
        return self.top(self.interaction(self.bottom(dense), self.tables(indices)))


def build(max_rows: int, width: int, bottom: list[int], top: list[int], hots: list[int]) -> DLRM:
    """DLRM with the dot interaction."""
    features = len(hots)
    merged = width + (features + 1) * features // 2
    return DLRM(
        Tables(table_rows(max_rows, features), hots, width),
        mlp([13, *bottom, width], last_active=True),
        Pairs(features + 1),
        mlp([merged, *top, 1], last_active=False),
    )


def build_dcnv2(
    max_rows: int, width: int, bottom: list[int], top: list[int], hots: list[int], layers: int, rank: int
) -> DLRM:
    """DLRM with cross layers instead of dot products."""
    merged = width * (len(hots) + 1)
    return DLRM(
        Tables(table_rows(max_rows, len(hots)), hots, width),
        mlp([13, *bottom, width], last_active=True),
        Cross(merged, layers, rank),
        mlp([merged, *top, 1], last_active=False),
    )


HOTS_DCNV2 = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]
"""Indices of each feature in MLPerf's multi-hot Criteo set; 214 in all."""


def example(rng, sizes):
    """Counts as the data set gives them (log of a count), and indices within each feature's table."""
    hots = HOTS_DCNV2[: sizes["features"]] if sizes["multi_hot"] else [1] * sizes["features"]
    rows = table_rows(sizes["max_rows"], sizes["features"])
    columns = [rng.integers(0, count, (sizes["batch"], hot)) for count, hot in zip(rows, hots, strict=True)]
    return {
        "dense": rng.exponential(1.0, (sizes["batch"], 13)),
        "indices": np.concatenate(columns, axis=1),
    }
