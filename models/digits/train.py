"""Train the digits model and write it with its held-out images: `digits.onnx` and `heldout.npz`.

Run `python models/digits/train.py` from the repository root; it needs torch and scikit-learn and takes
less than a minute on one CPU core.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

HERE = Path(__file__).resolve().parent
SEED = 0
HELD_OUT_FRACTION = 0.3
PIXEL_MAX = 16.0  # scikit-learn's digits hold whole numbers from 0 to 16
CLASSES = 10
EPOCHS = 60
BATCH_SIZE = 64
PEAK_LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-2
LABEL_SMOOTHING = 0.1
MAX_SHIFT = 1  # pixels
OPSET = 17
IR_VERSION = 8  # old enough for TensorRT 8.6

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Images float32 [n, 1, 8, 8] in [0, 1] and labels int64 [n], for training and held out from it."""

    train_images: FloatArray
    train_labels: IntArray
    heldout_images: FloatArray
    heldout_labels: IntArray


class ConvNorm(nn.Module):
    """A convolution without bias, then BatchNorm: [b, in, h, w] to [b, out, h/stride, w/stride]."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2, bias=False
        )
        self.norm: nn.Module = nn.BatchNorm2d(out_channels)

    def forward(self, features: Tensor) -> Tensor:
        """Return the normalised features, before any activation."""
        result: Tensor = self.norm(self.conv(features))
        return result

    def fold_norm(self) -> None:
        """Fold the BatchNorm into the convolution's weight and bias; only right in evaluation mode."""
        if isinstance(self.norm, nn.BatchNorm2d):
            self.conv = fuse_conv_bn_eval(self.conv, self.norm)
            self.norm = nn.Identity()


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a skip path, which a 1x1 convolution projects where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = ConvNorm(in_channels, out_channels, kernel_size=3, stride=stride)
        self.relu1 = nn.ReLU()
        self.conv2 = ConvNorm(out_channels, out_channels, kernel_size=3)
        self.relu2 = nn.ReLU()
        same_shape = in_channels == out_channels and stride == 1
        self.project: nn.Module = (
            nn.Identity() if same_shape else ConvNorm(in_channels, out_channels, kernel_size=1, stride=stride)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return features [b, out, h/stride, w/stride]."""
        main = self.conv2(self.relu1(self.conv1(features)))
        result: Tensor = self.relu2(main + self.project(features))
        return result


class DigitsNet(nn.Module):
    """A residual network for 8x8 digits: images [b, 1, 8, 8] in [0, 1] to logits [b, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(1, 16, kernel_size=3)
        self.stem_relu = nn.ReLU()
        self.block1 = ResidualBlock(16, 16)
        self.block2 = ResidualBlock(16, 32, stride=2)
        self.block3 = ResidualBlock(32, 64, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(64, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [b, 10]."""
        features = self.stem_relu(self.stem(images))
        features = self.block3(self.block2(self.block1(features)))
        logits: Tensor = self.classifier(self.flatten(self.pool(features)))
        return logits


def seed_torch(seed: int) -> None:
    """Make training repeatable on one machine."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    # The order of sums depends on the number of threads, and the network is too small to gain from more.
    torch.set_num_threads(1)


def load_split(seed: int) -> Split:
    """Load scikit-learn's digits and split them, every class in the same proportion on both sides."""
    digits = load_digits()
    images = (digits.images / PIXEL_MAX).astype(np.float32)[:, np.newaxis]
    labels = digits.target.astype(np.int64)
    train_images, heldout_images, train_labels, heldout_labels = train_test_split(
        images, labels, test_size=HELD_OUT_FRACTION, stratify=labels, random_state=seed
    )
    return Split(train_images, train_labels, heldout_images, heldout_labels)


def shift_randomly(images: Tensor) -> Tensor:
    """Move each image [b, 1, h, w] by up to MAX_SHIFT pixels each way, filling with background."""
    count, _, height, width = images.shape
    padded = functional.pad(images, [MAX_SHIFT] * 4).squeeze(1)
    offsets = torch.randint(0, 2 * MAX_SHIFT + 1, (2, count, 1))
    rows = offsets[0] + torch.arange(height)
    columns = offsets[1] + torch.arange(width)
    which = torch.arange(count)[:, None, None]
    return padded[which, rows[:, :, None], columns[:, None, :]].unsqueeze(1)


def train(images: FloatArray, labels: IntArray) -> DigitsNet:
    """Train for a fixed number of epochs, without a look at any other data; return it in evaluation mode."""
    model = DigitsNet()
    all_images, all_labels = torch.from_numpy(images), torch.from_numpy(labels)
    steps_per_epoch = len(labels) // BATCH_SIZE
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=PEAK_LEARNING_RATE, epochs=EPOCHS, steps_per_epoch=steps_per_epoch
    )
    model.train()
    for _ in range(EPOCHS):
        # The images left over from whole batches are dropped; the next epoch draws a new order.
        order = torch.randperm(len(labels))[: steps_per_epoch * BATCH_SIZE]
        for batch in order.view(steps_per_epoch, BATCH_SIZE):
            logits = model(shift_randomly(all_images[batch]))
            loss = functional.cross_entropy(logits, all_labels[batch], label_smoothing=LABEL_SMOOTHING)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return model.eval()


def fold_norms(model: DigitsNet) -> None:
    """Fold every BatchNorm of the model, in place.

    The exporter would fold them too, but then it names the weights by number; folded here, they keep the
    names of their modules.
    """
    for module in model.modules():
        if isinstance(module, ConvNorm):
            module.fold_norm()


def export_onnx(model: DigitsNet, path: Path) -> None:
    """Write the model as ONNX: `images` [batch, 1, 8, 8] to `logits` [batch, 10], both float32."""
    # The TorchScript exporter, because the newer one leaves this network at opset 18.
    torch.onnx.export(
        model,
        (torch.zeros(2, 1, 8, 8),),
        str(path),
        input_names=["images"],
        output_names=["logits"],
        dynamic_axes={"images": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=OPSET,
        dynamo=False,
    )
    exported = onnx.load(path)
    exported.ir_version = IR_VERSION
    onnx.checker.check_model(exported, full_check=True)
    onnx.save(exported, path)


def count_correct(path: Path, images: FloatArray, labels: IntArray) -> int:
    """Return how many of the images the ONNX file classifies rightly under ONNX Runtime on the CPU."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": images})
    return int((np.asarray(logits).argmax(axis=1) == labels).sum())


def count_weights(path: Path) -> int:
    """Return the number of values in the ONNX file's initializers."""
    return sum(int(np.prod(weight.dims)) for weight in onnx.load(path).graph.initializer)


def main() -> None:
    """Train, write both files, and print the numbers that the README states."""
    parser = argparse.ArgumentParser(description="Train the digits model and write it to a folder.")
    parser.add_argument(
        "--output-dir", type=Path, default=HERE, help="where to write (default: beside this script)"
    )
    output_dir: Path = parser.parse_args().output_dir
    output_dir.mkdir(parents=True, exist_ok=True)
    model_path = output_dir / "digits.onnx"

    seed_torch(SEED)
    split = load_split(SEED)
    model = train(split.train_images, split.train_labels)
    fold_norms(model)
    export_onnx(model, model_path)
    np.savez_compressed(output_dir / "heldout.npz", images=split.heldout_images, labels=split.heldout_labels)

    count = len(split.heldout_labels)
    correct = count_correct(model_path, split.heldout_images, split.heldout_labels)
    print(f"held-out accuracy: {correct} of {count} ({correct / count:.2%})")
    print(f"parameters: {count_weights(model_path)}")
    print(f"size: {model_path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
