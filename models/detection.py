"""What detectors share: feature pyramid, anchors, box arithmetic, NMS and RoIAlign of static shape.

Boxes are [x1, y1, x2, y2] in pixels. Everything about boxes is in FP32 whatever the weights' type.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LARGEST_LOG = math.log(1000.0 / 16)


class FeaturePyramid(nn.Module):
    """Top-down maps of equal width (Lin et al. 2016, arXiv:1612.03144)."""

    def __init__(self, channels: list[int], width: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Conv2d(count, width, 1) for count in channels)
        self.layer = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in channels)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Maps from fine to coarse, each half the last → as many, of `width` channels."""
        x = self.inner[-1](maps[-1])
        found = [self.layer[-1](x)]
        for index in range(len(maps) - 2, -1, -1):
            x = self.inner[index](maps[index]) + F.interpolate(x, scale_factor=2.0, mode="nearest")
            found.insert(0, self.layer[index](x))
        return found


def anchors_of(height: int, width: int, stride: int, sizes: list[float], ratios: list[float]) -> Tensor:
    """Anchors of one level, row by row, shape by shape: [height·width·shapes, 4]."""
    shapes = torch.tensor([[-w / 2, -h / 2, w / 2, h / 2] for w, h in _shapes(sizes, ratios)])
    y, x = torch.meshgrid(torch.arange(height) * stride, torch.arange(width) * stride, indexing="ij")
    centres = torch.stack([x, y, x, y], dim=-1).reshape(-1, 1, 4)
    return (centres + shapes).reshape(-1, 4)


def _shapes(sizes: list[float], ratios: list[float]) -> list[tuple[float, float]]:
    return [(size / math.sqrt(ratio), size * math.sqrt(ratio)) for ratio in ratios for size in sizes]


def per_anchor(maps: list[Tensor], values: int) -> Tensor:
    """Heads' maps [N, shapes·values, H, W] → one row an anchor, [N, anchors, values]."""
    return torch.cat([x.unflatten(1, (-1, values)).permute(0, 3, 4, 1, 2).flatten(1, 3) for x in maps], dim=1)


def decode(boxes: Tensor, deltas: Tensor, weights: tuple[float, float], height: int, width: int) -> Tensor:
    """Boxes [..., 4] moved by deltas (dx, dy, dw, dh) over `weights` for place and size, cut to the image."""
    x1, y1, x2, y2 = boxes.float().unbind(-1)
    dx, dy, dw, dh = deltas.float().unbind(-1)
    w, h = x2 - x1, y2 - y1
    x = x1 + w / 2 + dx / weights[0] * w
    y = y1 + h / 2 + dy / weights[0] * h
    half_w = w / 2 * torch.exp((dw / weights[1]).clamp(max=_LARGEST_LOG))
    half_h = h / 2 * torch.exp((dh / weights[1]).clamp(max=_LARGEST_LOG))
    return torch.stack(
        [
            (x - half_w).clamp(0, width),
            (y - half_h).clamp(0, height),
            (x + half_w).clamp(0, width),
            (y + half_h).clamp(0, height),
        ],
        dim=-1,
    )


def pick(rows: Tensor, index: Tensor) -> Tensor:
    """Rows [N, A, V] at index [N, K] → [N, K, V]."""
    return torch.gather(rows, 1, index[:, :, None].expand(-1, -1, rows.shape[2]))


def overlaps(boxes: Tensor) -> Tensor:
    """Intersection over union of all pairs: [N, K, 4] → [N, K, K]."""
    first, second = boxes[:, :, None], boxes[:, None]
    inner = (
        torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])
    ).clamp(0)
    intersection = inner[..., 0] * inner[..., 1]
    area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    return intersection / (area[:, :, None] + area[:, None] - intersection).clamp(min=1e-9)


def nms(boxes: Tensor, groups: Tensor, alive: Tensor, threshold: float, rounds: int) -> Tensor:
    """Which boxes non-maximum suppression keeps, as a mask: shapes do not depend on data.

    Cluster-NMS (Zheng et al. 2020, arXiv:2005.03572): a box is dropped if a kept box before it overlaps it;
    repeated from "all are kept", this is greedy NMS once `rounds` reaches the longest chain of boxes that
    suppress one another. The first `rounds` boxes are right in any case.

    Args:
        boxes: [N, K, 4], best first.
        groups: [N, K]; boxes of different groups do not suppress one another.
        alive: [N, K], 1 for boxes that take part, 0 for others.
        threshold: overlap above which the later box is dropped.
        rounds: how often to repeat.

    Returns:
        [N, K], 1 for kept boxes, 0 for others, in FP32.
    """
    count = boxes.shape[1]
    before = torch.ones(count, count, device=boxes.device).triu(1)
    same = (groups[:, :, None] == groups[:, None]).float()
    drops = (overlaps(boxes) > threshold).float() * same * before
    kept = alive
    for _ in range(rounds):
        kept = alive * (torch.bmm(kept[:, None], drops)[:, 0] < 0.5).float()
    return kept


class RoiAlign(nn.Module):
    """RoIAlign (He et al. 2017, arXiv:1703.06870) over a pyramid, without sorting boxes by level.

    The levels lie side by side on one canvas, the finest left, the others in a column right of it. The level
    of a box is then an offset of its sampling points, and one bilinear sampling serves all boxes; two points
    a bin and axis. Points are kept inside their level, so nothing is read from a neighbour.
    """

    def __init__(self, out: int, sizes: list[tuple[int, int]], strides: list[int]) -> None:
        super().__init__()
        self.out, self.canvas = out, (sizes[0][0], sizes[0][1] + sizes[1][1])
        tops = [0, *(sum(height for height, _ in sizes[1:level]) for level in range(1, len(sizes)))]
        rows = [
            [1.0 / stride, height - 1, width - 1, top, sizes[0][1] if level else 0]
            for level, ((height, width), stride, top) in enumerate(zip(sizes, strides, tops, strict=True))
        ]
        self.register_buffer("levels", torch.tensor(rows, dtype=torch.float32), persistent=False)
        limits = [112.0 * 2**level for level in range(len(sizes) - 1)]
        self.register_buffer("limits", torch.tensor(limits), persistent=False)
        self.register_buffer("points", (torch.arange(2 * out) + 0.5) / (2 * out), persistent=False)

    def forward(self, maps: list[Tensor], boxes: Tensor) -> Tensor:
        """Maps [N, C, H, W] and boxes [N, K, 4] → [N·K, C, out, out]."""
        side = torch.sqrt((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1]))
        level = (side[..., None] >= self.limits.float()).long().sum(-1)
        scale, bottom, right, top, left = self.levels.float()[level].unbind(-1)
        box = boxes * scale[..., None]
        x = self._along(box[..., 0], box[..., 2], right) + left[..., None]
        y = self._along(box[..., 1], box[..., 3], bottom) + top[..., None]
        height, width = self.canvas
        x, y = ((x + 0.5) * (2 / width) - 1, (y + 0.5) * (2 / height) - 1)
        fine = 2 * self.out
        grid = torch.stack(
            [x[:, :, None].expand(-1, -1, fine, -1), y[..., None].expand(-1, -1, -1, fine)], dim=-1
        )
        canvas = self._canvas(maps)
        found = F.grid_sample(canvas.float(), grid.flatten(1, 2), align_corners=False)  # [N, C, K·fine, fine]
        pooled = F.avg_pool2d(found, 2).unflatten(2, (-1, self.out))
        return pooled.transpose(1, 2).flatten(0, 1).to(canvas.dtype)

    def _along(self, low: Tensor, high: Tensor, last: Tensor) -> Tensor:
        """The sampling points along one axis, [N, K, 2·out], kept within [0, last]."""
        extent = (high - low).clamp(min=1.0)
        points = low[..., None] + extent[..., None] * self.points.float()
        return torch.minimum(points.clamp(min=0.0), last[..., None])

    def _canvas(self, maps: list[Tensor]) -> Tensor:
        column = torch.cat([F.pad(x, (0, maps[1].shape[3] - x.shape[3])) for x in maps[1:]], dim=2)
        column = F.pad(column, (0, 0, 0, maps[0].shape[2] - column.shape[2]))
        return torch.cat([maps[0], column], dim=3)
