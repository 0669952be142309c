"""Mask R-CNN (He et al. 2017, arXiv:1703.06870) on a feature pyramid, whole in one graph."""

import torch
from detection import FeaturePyramid, RoiAlign, anchors_of, decode, nms, per_anchor, pick
from resnet import Backbone
from retinanet import finish
from torch import Tensor, nn
from torch.nn import functional as F

_RATIOS = [0.5, 1.0, 2.0]


class MaskRCNN(nn.Module):
    """Proposals, boxes, masks."""

    def __init__(
        self,
        height: int,
        width: int,
        depths: list[int],
        stem: int,
        channels: int,
        hidden: int,
        classes: int,
        candidates: int,
        proposals: int,
        detections: int,
        rounds: int,
    ) -> None:
        super().__init__()
        self.height, self.width, self.classes, self.rounds = height, width, classes, rounds
        self.candidates, self.proposals, self.detections = candidates, proposals, detections
        self.backbone = Backbone(depths, stem)
        self.pyramid = FeaturePyramid(self.backbone.channels, channels)
        self.rpn_conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.rpn_score = nn.Conv2d(channels, len(_RATIOS), 1)
        self.rpn_delta = nn.Conv2d(channels, 4 * len(_RATIOS), 1)
        strides = [4, 8, 16, 32]
        sizes = [(height // stride, width // stride) for stride in strides]
        anchors = [
            anchors_of(-(-height // stride), -(-width // stride), stride, [8.0 * stride], _RATIOS)
            for stride in [*strides, 64]
        ]
        self.register_buffer("anchors", torch.cat(anchors), persistent=False)
        level = torch.cat([torch.full((len(rows),), index) for index, rows in enumerate(anchors)])
        self.register_buffer("level", level, persistent=False)
        self.box_align = RoiAlign(7, sizes, strides)
        self.mask_align = RoiAlign(14, sizes, strides)
        self.fc1 = nn.Linear(channels * 49, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, classes)
        self.delta = nn.Linear(hidden, 4 * classes)
        self.mask_convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(4))
        self.mask_up = nn.ConvTranspose2d(channels, channels, 2, 2)
        self.mask_logits = nn.Conv2d(channels, classes, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[N, 3, height, width] → boxes [N, D, 4], scores [N, D], labels [N, D], masks [N, D, 28, 28].

        Masks are probabilities within their boxes. Unused rows have score 0 and label −1.
        """
        maps = self.pyramid(self.backbone.stages(image))
        proposals, valid = self.propose([*maps, F.max_pool2d(maps[-1], 1, 2)])
        boxes, scores, labels = self.detect(maps, proposals, valid)
        return boxes, scores, labels, self.segment(maps, boxes, labels)

    def propose(self, levels: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The best boxes that may hold an object: [N, P, 4], and 1 for rows in use, else 0 [N, P]."""
        hidden = [torch.relu(self.rpn_conv(x)) for x in levels]
        logits = per_anchor([self.rpn_score(x) for x in hidden], 1)[..., 0].float()
        deltas = per_anchor([self.rpn_delta(x) for x in hidden], 4)
        scores, index = torch.topk(torch.sigmoid(logits), self.candidates, dim=1)
        boxes = decode(self.anchors.float()[index], pick(deltas, index), (1.0, 1.0), self.height, self.width)
        kept = nms(boxes, self.level[index], torch.ones_like(scores), 0.7, self.rounds)
        best, order = torch.topk(scores * kept, self.proposals, dim=1)
        valid = (best > 0).float()
        return pick(boxes, order) * valid[..., None], valid

    def detect(self, maps: list[Tensor], proposals: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best class of each proposal, its box refined, NMS within each class."""
        x = self.box_align(maps, proposals).flatten(1)
        x = torch.relu(self.fc2(torch.relu(self.fc1(x))))
        chances = torch.softmax(self.score(x).float(), dim=-1)[:, 1:]  # class 0 is the background
        scores, labels = chances.max(dim=-1)
        deltas = pick(self.delta(x).unflatten(1, (self.classes, 4)), labels[:, None] + 1)[:, 0]
        rows = (-1, self.proposals)
        boxes = decode(proposals, deltas.unflatten(0, rows), (10.0, 5.0), self.height, self.width)
        scores, order = torch.topk(scores.unflatten(0, rows) * valid, self.proposals, dim=1)
        labels = torch.gather(labels.unflatten(0, rows), 1, order) + 1
        return finish(pick(boxes, order), scores, labels, 0.5, self.rounds, self.detections, floor=0.05)

    def segment(self, maps: list[Tensor], boxes: Tensor, labels: Tensor) -> Tensor:
        """The mask of each detection's own class, [N, D, 28, 28]."""
        x = self.mask_align(maps, boxes)
        for conv in self.mask_convs:
            x = torch.relu(conv(x))
        x = torch.sigmoid(self.mask_logits(torch.relu(self.mask_up(x))))
        own = labels.clamp(min=0).flatten()[:, None]
        masks = pick(x.flatten(2), own)[:, 0]
        return masks.unflatten(0, (-1, self.detections)).unflatten(2, (28, 28))


def build(**sizes: object) -> MaskRCNN:
    """The COCO model has a ResNet-50, 256 channels, 91 classes; height and width are multiples of 32."""
    model = MaskRCNN(**sizes)
    for layer in (model.rpn_conv, model.rpn_score, model.fc1, model.fc2, model.score):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return model
