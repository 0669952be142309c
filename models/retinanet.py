"""RetinaNet (Lin et al. 2017, arXiv:1708.02002) with its post-processing in the graph."""

import math

import torch
from detection import FeaturePyramid, anchors_of, decode, nms, per_anchor, pick
from resnet import Backbone
from torch import Tensor, nn

_SIZES = [2 ** (octave / 3) for octave in range(3)]
_RATIOS = [0.5, 1.0, 2.0]


def head(width: int, convolutions: int, out: int) -> nn.Sequential:
    """3×3 convolutions with ReLU, and a last one to `out` channels."""
    layers: list[nn.Module] = []
    for _ in range(convolutions):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, out, 3, padding=1))


class RetinaNet(nn.Module):
    """Detector of one stage."""

    def __init__(
        self,
        side: int,
        depths: list[int],
        stem: int,
        groups: int,
        group_width: int,
        width: int,
        convolutions: int,
        classes: int,
        candidates: int,
        detections: int,
        rounds: int,
    ) -> None:
        super().__init__()
        self.side, self.classes, self.candidates, self.detections = side, classes, candidates, detections
        self.rounds = rounds
        self.backbone = Backbone(depths, stem, groups, group_width)
        self.pyramid = FeaturePyramid(self.backbone.channels[1:], width)
        self.p6 = nn.Conv2d(self.backbone.channels[-1], width, 3, 2, padding=1)
        self.p7 = nn.Conv2d(width, width, 3, 2, padding=1)
        shapes = len(_SIZES) * len(_RATIOS)
        self.class_head = head(width, convolutions, shapes * classes)
        self.box_head = head(width, convolutions, shapes * 4)
        anchors = []
        for level in range(3, 8):
            stride = 2**level
            cells = -(-side // stride)
            anchors.append(anchors_of(cells, cells, stride, [4 * stride * size for size in _SIZES], _RATIOS))
        self.register_buffer("anchors", torch.cat(anchors), persistent=False)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, 3, side, side] → boxes [N, D, 4], scores [N, D], labels [N, D]; unused rows are 0, 0, −1."""
        maps = self.backbone.stages(image)
        levels = self.pyramid(maps[1:])
        levels.append(self.p6(maps[-1]))
        levels.append(self.p7(torch.relu(levels[-1])))
        logits = per_anchor([self.class_head(x) for x in levels], self.classes)
        deltas = per_anchor([self.box_head(x) for x in levels], 4)
        best, labels = logits.float().max(dim=-1)
        scores, index = torch.topk(torch.sigmoid(best), self.candidates, dim=1)
        # all are decoded: where anchors were gathered first, TensorRT 8.6 built no engine for 8 images or 32
        boxes = pick(decode(self.anchors, deltas, (1.0, 1.0), self.side, self.side), index)
        labels = torch.gather(labels, 1, index)
        return finish(boxes, scores, labels, 0.5, self.rounds, self.detections, floor=0.05)


def finish(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    threshold: float,
    rounds: int,
    detections: int,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """NMS within each label over boxes sorted by score, and the best `detections` of what is kept."""
    kept = nms(boxes, labels, (scores > floor).float(), threshold, rounds)
    scores, index = torch.topk(scores * kept, detections, dim=1)
    used = scores > 0
    return (
        pick(boxes, index) * used[..., None].float(),
        scores,
        torch.where(used, torch.gather(labels, 1, index), torch.full_like(index, -1)),
    )


def build(**sizes: object) -> RetinaNet:
    """MLPerf's has a ResNeXt-50 32×4d, side 800, 264 classes."""
    return _spread(RetinaNet(**sizes))


def _spread(model: RetinaNet) -> RetinaNet:
    """Make seeded heads decided enough that detections have an order which rounding does not change.

    Anchors are background with a chance of 99 % to begin with (section 4.1 of the paper): scores keep from 1.
    """
    for layers in (model.class_head, model.box_head):
        for layer in layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.constant_(model.class_head[-1].bias, -math.log(99))
    return model
