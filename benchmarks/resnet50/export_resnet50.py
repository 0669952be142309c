"""Export ResNet-50 v1.5 in FP16 with seeded weights.

    python export_resnet50.py OUT.onnx        (needs torch and transformers)

Input `pixels` float16 [batch, 3, 224, 224], output `logits` float16 [batch, 1000], opset 17; the exporter
folds BatchNorm into the convolutions. The weights are random, so the numbers mean speed and nothing else.
"""

import sys
import warnings

import torch
from transformers import ResNetConfig, ResNetForImageClassification


class Logits(torch.nn.Module):
    """The classifier with a bare tensor as its output."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ResNetForImageClassification(ResNetConfig(num_labels=1000))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Images [batch, 3, 224, 224] to logits [batch, 1000]."""
        return self.model(pixels).logits


def main(out: str) -> None:
    """Write the ONNX file."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = Logits().eval().half()
    pixels = torch.randn(2, 3, 224, 224, dtype=torch.float16)
    if torch.cuda.is_available():  # FP16 convolutions are slow or missing on some CPUs
        model, pixels = model.cuda(), pixels.cuda()
    torch.onnx.export(
        model,
        (pixels,),
        out,
        input_names=["pixels"],
        output_names=["logits"],
        dynamic_axes={"pixels": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )


if __name__ == "__main__":
    main(sys.argv[1])
