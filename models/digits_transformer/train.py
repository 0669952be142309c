"""Train the digits transformer and write it with its held-out data: `digits_transformer.onnx`, `heldout.npz`.

Run `python models/digits_transformer/train.py` from the repository root; it needs torch and scikit-learn and
takes a few minutes on two CPU cores. The file is written by trtopt's own export, which compares it with
PyTorch.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional

from trtopt.device.ort.reference import open_reference
from trtopt.export.export import export
from trtopt.export.source_module import Subject
from trtopt.export.spec import Axis, Input

HERE = Path(__file__).resolve().parent
NAME = "digits_transformer"
SEED = 0
HELD_OUT_FRACTION = 0.3
SHADES = 17  # scikit-learn's digits hold whole numbers from 0 to 16
SIDE = 8
PATCH = 2
CLASSES = 10
WIDTH, HEADS, LAYERS = 64, 4, 3
EPOCHS = 100
BATCH_SIZE = 64
PEAK_LEARNING_RATE = 2e-3
WEIGHT_DECAY = 0.05
LABEL_SMOOTHING = 0.1
DROPOUT = 0.1


class Block(nn.Module):
    """Pre-norm attention and feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """[N, S, width] → [N, S, width]."""
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).unbind(2)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        scores = query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        mixed = (torch.softmax(scores, dim=-1) @ value).transpose(1, 2).flatten(2)
        x = x + self.drop(self.proj(mixed))
        return x + self.drop(self.fc2(functional.gelu(self.fc1(self.norm2(x)))))


class Classifier(nn.Module):
    """Reads an image as 64 words, a pixel's shade each; a patch of 2×2 words makes one position.

    Shades are ordered, and the embedding starts out that way: along a line, with noise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shades = nn.Embedding(PATCH * PATCH * SHADES, WIDTH)
        ramp = torch.linspace(-1.0, 1.0, SHADES)[None, :, None] * torch.randn(PATCH * PATCH, 1, WIDTH)
        nn.init.normal_(self.shades.weight, std=0.02)
        with torch.no_grad():
            self.shades.weight += ramp.flatten(0, 1)
        place = torch.arange(SIDE)[:, None] % PATCH * PATCH + torch.arange(SIDE)[None] % PATCH
        self.register_buffer("first_word", (place * SHADES).flatten())
        self.positions = nn.Parameter(torch.randn((SIDE // PATCH) ** 2, WIDTH) * 0.5)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, 64] of shades → logits [N, 10]."""
        words = self.shades(tokens + self.first_word)
        patches = words.unflatten(1, (SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)).sum((2, 4)).flatten(1, 2)
        x = self.blocks(patches + self.positions)
        return self.head(self.norm(x.mean(1)))


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Tokens int64 [n, 64] and labels int64 [n]: training tokens, held-out tokens, and the labels of both."""
    digits = load_digits()
    parts = train_test_split(
        digits.data.astype(np.int64),
        digits.target.astype(np.int64),
        test_size=HELD_OUT_FRACTION,
        random_state=SEED,
        stratify=digits.target,
    )
    return tuple(parts)  # type: ignore[return-value]


def shifted(tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to one pixel, blank where nothing comes in."""
    images = functional.pad(tokens.unflatten(1, (SIDE, SIDE)), (1, 1, 1, 1))
    moves = torch.randint(0, 3, (len(images), 2), generator=generator).tolist()
    cut = [image[y : y + SIDE, x : x + SIDE] for image, (y, x) in zip(images, moves, strict=True)]
    return torch.stack(cut).flatten(1)


def train(tokens: Tensor, labels: Tensor) -> Classifier:
    """Fit the classifier from the fixed seed."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    model = Classifier()
    steps = EPOCHS * (-(-len(tokens) // BATCH_SIZE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in torch.randperm(len(tokens), generator=generator).split(BATCH_SIZE):
            loss = functional.cross_entropy(
                model(shifted(tokens[rows], generator)), labels[rows], label_smoothing=LABEL_SMOOTHING
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch + 1}/{EPOCHS}: loss {total / len(tokens):.4f}", flush=True)
    return shortened(model.eval().requires_grad_(False))


def shortened(model: Classifier) -> Classifier:
    """The model with weights of 16 significant bits, which compress better; no prediction changes by it."""
    for weight in model.parameters():
        bits = (weight.view(torch.int32) + 0x80) & ~0xFF
        weight.copy_(bits.view(torch.float32))
    return model


def subject(model: Classifier, tokens: np.ndarray) -> Subject:
    """The classifier as trtopt exports it, with held-out images as examples."""
    return Subject(
        name=NAME,
        module=model,
        inputs=(Input(name="tokens", dtype="int64", shape=("batch", SIDE * SIDE)),),
        outputs=("logits",),
        axes={"batch": Axis(min=1, opt=8, max=64)},
        example=lambda sizes: {"tokens": tokens[: sizes["batch"]]},
    )


def main() -> None:
    """Train, measure, export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", type=Path, default=HERE)
    folder = parser.parse_args().output_dir
    train_tokens, heldout_tokens, train_labels, heldout_labels = split()
    model = train(torch.from_numpy(train_tokens), torch.from_numpy(train_labels))
    exported = export(subject(model, heldout_tokens), folder / f"{NAME}.onnx", open_reference)
    scratch = folder / ".heldout.tmp.npz"
    np.savez_compressed(scratch, tokens=heldout_tokens.astype(np.uint8), labels=heldout_labels)
    os.replace(scratch, folder / "heldout.npz")
    logits = open_reference(exported.path)({"tokens": heldout_tokens})["logits"]
    correct = int((logits.argmax(1) == heldout_labels).sum())
    parameters = sum(entry.numel() for entry in model.parameters())
    share = correct / len(heldout_labels)
    print(f"{correct} of {len(heldout_labels)} right ({share:.2%}), {parameters} parameters")


if __name__ == "__main__":
    main()
