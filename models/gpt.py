"""GPT-2 style decoder (Radford et al. 2019): a prompt, and one step with cached keys and values."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Pre-norm causal attention and feed-forward network."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.fc1 = nn.Linear(hidden, 4 * hidden)
        self.fc2 = nn.Linear(4 * hidden, hidden)

    def forward(
        self, x: Tensor, bias: Tensor | None, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[N, S, hidden] with keys and values [N, heads, P, d] of the past → new x, all keys, all values."""
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if bias is not None:
            scores = scores + bias
        x = x + self.proj((torch.softmax(scores, dim=-1) @ value).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh")), key, value


class GPT(nn.Module):
    """Embeddings, blocks, and logits by the word embeddings' transpose."""

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        nn.init.normal_(self.words.weight, std=0.02)  # shared with the output
        nn.init.normal_(self.positions.weight, std=0.01)

    def logits(self, x: Tensor) -> Tensor:
        """[N, S, hidden] → logits of the last position's next token [N, vocabulary]."""
        return self.norm(x[:, -1]) @ self.words.weight.T


class Prefill(GPT):
    """Reads the prompt."""

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, S] → next token's logits [N, vocabulary], keys and values [N, layers, heads, S, d]."""
        x = self.words(ids) + self.positions.weight[: ids.shape[1]]
        place = torch.arange(ids.shape[1], device=ids.device)
        bias = (place[None] > place[:, None]).to(x.dtype) * -1e4  # fits FP16
        keys, values = [], []
        for block in self.blocks:
            x, key, value = block(x, bias, None)
            keys.append(key)
            values.append(value)
        return self.logits(x), torch.stack(keys, 1), torch.stack(values, 1)


class Decode(GPT):
    """One more token."""

    def forward(self, ids: Tensor, past_keys: Tensor, past_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, 1] and the cache [N, layers, heads, P, d] twice → logits [N, vocabulary], cache of P + 1."""
        here = past_keys.shape[3]
        x = self.words(ids) + self.positions.weight[here : here + 1]
        keys, values = [], []
        for index, block in enumerate(self.blocks):
            x, key, value = block(x, None, (past_keys[:, index], past_values[:, index]))
            keys.append(key)
            values.append(value)
        return self.logits(x), torch.stack(keys, 1), torch.stack(values, 1)


def prefill(**sizes: int) -> Prefill:
    """GPT-2 small: 12 layers, hidden 768, 12 heads."""
    return Prefill(**sizes)


def decode(**sizes: int) -> Decode:
    """The same weights as `prefill` for the same seed."""
    return Decode(**sizes)
