"""The detectors' static forms do what the textbook forms do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trtopt.export.source_module import sibling_function
from trtopt.export.spec import folder

HERE = folder() / "retinanet.toml"
nms = sibling_function(HERE, "detection.py:nms")
overlaps = sibling_function(HERE, "detection.py:overlaps")
RoiAlign = sibling_function(HERE, "detection.py:RoiAlign")


def _boxes(seed: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(1, count, 2, generator=generator) * 60
    return torch.cat([corner, corner + 10 + torch.rand(1, count, 2, generator=generator) * 30], dim=-1)


def _greedy(boxes: torch.Tensor, groups: torch.Tensor, threshold: float) -> list[float]:
    shared = overlaps(boxes)[0]
    kept: list[int] = []
    for index in range(boxes.shape[1]):
        if all(shared[index, other] <= threshold or groups[0, index] != groups[0, other] for other in kept):
            kept.append(index)
    return [float(index in kept) for index in range(boxes.shape[1])]


@pytest.mark.parametrize("seed", range(20))
def test_cluster_nms_keeps_what_greedy_nms_keeps(seed: int) -> None:
    boxes = _boxes(seed, 60)
    groups = torch.randint(0, 3, (1, 60), generator=torch.Generator().manual_seed(seed))
    kept = nms(boxes, groups, torch.ones(1, 60), 0.5, rounds=10)
    assert kept[0].tolist() == _greedy(boxes, groups, 0.5)


def test_boxes_that_do_not_take_part_suppress_nothing() -> None:
    boxes = torch.tensor([[[0.0, 0, 10, 10], [0, 0, 10, 10]]])
    assert nms(boxes, torch.zeros(1, 2), torch.tensor([[0.0, 1.0]]), 0.5, 4)[0].tolist() == [0.0, 1.0]


def _roi_align(feature: np.ndarray, box: np.ndarray, scale: float, out: int) -> np.ndarray:
    """RoIAlign as the paper has it, two points a bin and axis, point by point: [C, out, out]."""
    x1, y1, x2, y2 = box * scale
    width, height = max(x2 - x1, 1.0), max(y2 - y1, 1.0)
    pooled = np.zeros((feature.shape[0], out, out))
    for row in range(2 * out):
        for column in range(2 * out):
            y = min(max(y1 + (row + 0.5) * height / (2 * out), 0.0), feature.shape[1] - 1.0)
            x = min(max(x1 + (column + 0.5) * width / (2 * out), 0.0), feature.shape[2] - 1.0)
            top, left = int(y), int(x)
            below, right = min(top + 1, feature.shape[1] - 1), min(left + 1, feature.shape[2] - 1)
            dy, dx = y - top, x - left
            value = feature[:, top, left] * (1 - dy) * (1 - dx) + feature[:, top, right] * (1 - dy) * dx
            value += feature[:, below, left] * dy * (1 - dx) + feature[:, below, right] * dy * dx
            pooled[:, row // 2, column // 2] += value / 4
    return pooled


def test_one_sampling_on_the_canvas_is_roi_align_on_every_level() -> None:
    height, width, strides = 512, 640, [4, 8, 16, 32]
    sizes = [(height // stride, width // stride) for stride in strides]
    generator = torch.Generator().manual_seed(0)
    maps = [torch.randn(2, 3, *size, generator=generator) for size in sizes]
    boxes = torch.tensor(
        [
            [
                [0.0, 0, 30, 40],
                [200, 100, 330, 290],
                [100, 50, 420, 400],
                [0, 0, 640, 512],
                [630, 500, 640, 512],
            ],
            [[5.0, 5, 5, 5], [300, 200, 420, 290], [0, 0, 300, 500], [10, 10, 600, 500], [600, 0, 640, 512]],
        ]
    )
    found = RoiAlign(7, sizes, strides)(maps, boxes).unflatten(0, (2, 5)).numpy()
    for image in range(2):
        for index, box in enumerate(boxes[image].numpy()):
            side = np.sqrt((box[2] - box[0]) * (box[3] - box[1]))
            level = int(np.clip(np.floor(4 + np.log2(side / 224 + 1e-12)), 2, 5)) - 2
            wanted = _roi_align(maps[level][image].numpy().astype(np.float64), box, 1 / strides[level], 7)
            np.testing.assert_allclose(found[image, index], wanted, rtol=1e-3, atol=1e-3)
