"""The network of the case study: a small transformer with a padding mask, trained in seconds on a CPU.

Which of twelve words does a sentence say most often? `python case_study.py` trains, and writes `counter.pt`
and `heldout.npz`. `trtopt export` calls `build`, `--data case_study.py:sentences` reads the training set.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

WORDS, LONGEST, WIDTH = 12, 24, 32
TRAINING, HELD_OUT = 0, 1


class Counter(nn.Module):
    """Tokens [N, S] and where there is only padding [N, S] to logits [N, words] and features [N, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS + 1, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor, padding: Tensor) -> dict[str, Tensor]:
        """The keys of the dictionary become the names of the file's outputs."""
        encoded = self.encoder(self.words(tokens), src_key_padding_mask=padding)
        is_word = (~padding).unsqueeze(-1).to(encoded.dtype)
        features = (encoded * is_word).sum(1) / is_word.sum(1)
        return {"logits": self.head(features), "features": features}


def draw(count: int, seed: int) -> TensorDataset:
    """Seeded sentences of 5 to 24 words, padded with 0: tokens, padding and labels; none has two answers."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, LONGEST + 1, (count, 1), generator=random)
    padding = torch.arange(LONGEST)[None] >= lengths
    tokens = torch.randint(1, WORDS + 1, (count, LONGEST), generator=random).masked_fill(padding, 0)
    counts = functional.one_hot(tokens, WORDS + 1).sum(1)[:, 1:]
    first, second = counts.topk(2).values.T
    kept = first > second
    return TensorDataset(tokens[kept], padding[kept], counts.argmax(1)[kept])


def train() -> Counter:
    """One pass over 8,000 sentences."""
    torch.manual_seed(0)
    model = Counter()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for tokens, padding, labels in DataLoader(draw(8_000, TRAINING), batch_size=64, shuffle=True):
        loss = functional.cross_entropy(model(tokens, padding)["logits"], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def build() -> tuple[nn.Module, dict[str, Tensor], dict[str, dict[int, str]]]:
    """What `trtopt export` asks for: the module, example inputs, and the axes that vary besides the batch."""
    model = Counter()
    model.load_state_dict(torch.load("counter.pt", weights_only=True))
    tokens, padding, _ = draw(8, HELD_OUT).tensors
    return model, {"tokens": tokens, "padding": padding}, {"tokens": {1: "length"}, "padding": {1: "length"}}


def sentences() -> Iterator[dict[str, np.ndarray]]:
    """What `--data case_study.py:sentences` reads: batches of the training set, as a DataLoader has them."""
    for tokens, padding, _ in DataLoader(draw(400, TRAINING), batch_size=32):
        yield {"tokens": tokens.numpy(), "padding": padding.numpy()}


def main() -> None:
    """Train, and write the weights and the held-out sentences with their labels."""
    model = train()
    torch.save(model.state_dict(), "counter.pt")
    tokens, padding, labels = draw(1_000, HELD_OUT).tensors
    np.savez("heldout.npz", tokens=tokens.numpy(), padding=padding.numpy(), labels=labels.numpy())
    with torch.no_grad():
        right = int((model(tokens, padding)["logits"].argmax(1) == labels).sum())
    print(f"{right} of {len(labels)} held-out sentences right")


if __name__ == "__main__":
    main()
