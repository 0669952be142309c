"""BERT (Devlin et al. 2018, arXiv:1810.04805) with heads for question answering and sentence embedding.

Parameter names are those of transformers, so that its checkpoints load.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, normalised."""

    def __init__(self, vocabulary: int, hidden: int, positions: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, hidden)
        self.position_embeddings = nn.Embedding(positions, hidden)
        self.token_type_embeddings = nn.Embedding(2, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, ids: Tensor, segments: Tensor, places: Tensor | None = None) -> Tensor:
        """[N, S] each → [N, S, hidden]; `places` are the tokens' positions, else 0 to S - 1."""
        table = self.position_embeddings
        positions = table.weight[: ids.shape[1]] if places is None else table(places)
        return self.LayerNorm(self.word_embeddings(ids) + positions + self.token_type_embeddings(segments))


class SelfAttention(nn.Module):
    """Scaled dot-product attention, written out so that the graph shows what TensorRT fuses."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """[N, S, hidden] and a bias [N, 1, 1 or S, S] on the scores → [N, S, hidden]."""
        query, key, value = (self._split(projection(x)) for projection in (self.query, self.key, self.value))
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias
        mixed = torch.softmax(scores, dim=-1) @ value
        return mixed.transpose(1, 2).flatten(2)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Output(nn.Module):
    """A projection back to the residual stream, and the normalisation after it."""

    def __init__(self, inner: int, hidden: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inner, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, eps=1e-12)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """[N, S, inner] and [N, S, hidden] → [N, S, hidden]."""
        return self.LayerNorm(self.dense(x) + residual)


class Layer(nn.Module):
    """Attention and a feed-forward network, each with its residual."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = nn.ModuleDict(
            {"self": SelfAttention(hidden, heads), "output": Output(hidden, hidden)}
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(hidden, inner)})
        self.output = Output(inner, hidden)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """[N, S, hidden] → [N, S, hidden]."""
        x = self.attention["output"](self.attention["self"](x, bias), x)
        return self.output(F.gelu(self.intermediate["dense"](x)), x)


class Bert(nn.Module):
    """The encoder."""

    def __init__(
        self, layers: int, hidden: int, heads: int, inner: int, vocabulary: int, positions: int
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(vocabulary, hidden, positions)
        self.encoder = nn.ModuleDict(
            {"layer": nn.ModuleList(Layer(hidden, heads, inner) for _ in range(layers))}
        )

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
        """Token ids, mask (1 for a token, 0 for padding) and segments [N, S] → [N, S, hidden]."""
        return self.encode(self.embeddings(ids, segments), mask[:, None, None, :])

    def encode(self, x: Tensor, seen: Tensor) -> Tensor:
        """[N, S, hidden] and what each token sees, 1 or 0 [N, 1, 1 or S, S] → [N, S, hidden]."""
        bias = (1.0 - seen.to(x.dtype)) * -1e4  # fits FP16
        for layer in self.encoder["layer"]:
            x = layer(x, bias)
        return x


class QuestionAnswering(nn.Module):
    """Where in the text the answer starts and ends."""

    def __init__(self, bert: Bert, hidden: int) -> None:
        super().__init__()
        self.bert = bert
        self.qa_outputs = nn.Linear(hidden, 2)

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        """→ start and end logits, [N, S] each."""
        start, end = self.qa_outputs(self.bert(ids, mask, segments)).unbind(-1)
        return start, end


class PackedQuestionAnswering(QuestionAnswering):
    """The same for rows that hold several sequences, which do not see one another.

    Attention between them is masked by a block for each on the diagonal, and positions begin again with each
    (Krell et al. 2021, arXiv:2107.02027). Weights are those of `QuestionAnswering`.
    """

    def forward(
        self, ids: Tensor, sequences: Tensor, segments: Tensor, places: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[N, S] each → start and end logits, [N, S] each.

        `sequences` tells to which of the row's sequences a token belongs, from 1 on, 0 for padding; `places`
        are positions within the sequence.
        """
        same = (sequences[:, None, :, None] == sequences[:, None, None, :]).to(torch.int64)
        vectors = self.bert.encode(self.bert.embeddings(ids, segments, places), same)
        start, end = self.qa_outputs(vectors).unbind(-1)
        return start, end


class SentenceEmbedding(Bert):
    """Mean of the tokens' vectors, of unit length (Reimers and Gurevych 2019, arXiv:1908.10084)."""

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
        """→ [N, hidden]."""
        vectors = super().forward(ids, mask, segments)
        weights = mask[:, :, None].to(vectors.dtype)
        mean = (vectors * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return F.normalize(mean, dim=-1)


def question_answering(hidden: int, **sizes: int) -> QuestionAnswering:
    """`sizes` as `Bert` takes them."""
    return QuestionAnswering(Bert(hidden=hidden, **sizes), hidden)


def packed_question_answering(hidden: int, **sizes: int) -> PackedQuestionAnswering:
    """`sizes` as `Bert` takes them."""
    return PackedQuestionAnswering(Bert(hidden=hidden, **sizes), hidden)


def sentence_embedding(**sizes: int) -> SentenceEmbedding:
    """`sizes` as `Bert` takes them."""
    return SentenceEmbedding(**sizes)


def example(rng, sizes):
    """Random tokens; the first row is whole, every other one is padded after a random length."""
    shape = (sizes["batch"], sizes["sequence"])
    lengths = rng.integers(1, sizes["sequence"] + 1, (sizes["batch"], 1))
    lengths[0] = sizes["sequence"]
    mask = rng.integers(0, 1, shape) + (lengths > range(sizes["sequence"]))
    ids = rng.integers(0, sizes["vocabulary"], shape) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": rng.integers(0, 2, shape) * mask}


def packed_example(rng, sizes):
    """Random tokens, up to three sequences of random length in a row; the first row is one, and whole."""
    rows, width = sizes["batch"], sizes["sequence"]
    sequences = np.zeros((rows, width), np.int64)
    places = np.zeros((rows, width), np.int64)
    for row in range(rows):
        start, many = 0, 1 if row == 0 else 3
        for number in range(1, many + 1):
            length = width if row == 0 else int(rng.integers(0, (width - start) // (many + 1 - number) + 1))
            sequences[row, start : start + length] = number
            places[row, start : start + length] = range(length)
            start += length
    tokens = (sequences > 0).astype(np.int64)
    return {
        "input_ids": rng.integers(0, sizes["vocabulary"], (rows, width)) * tokens,
        "attention_mask": sequences,
        "token_type_ids": rng.integers(0, 2, (rows, width)) * tokens,
        "position_ids": places,
    }


def pack(samples, rows, width):
    """Inputs of the packed model: `samples` are unpadded inputs [S] by name, `rows` say which share a row.

    Returns arrays [len(rows), width] by name. Where a sequence begins is where its position is 0 and its
    number in `attention_mask` is its place in the row, from 1 on.
    """
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    packed = {name: np.zeros((len(rows), width), np.int64) for name in names}
    for row, members in enumerate(rows):
        start = 0
        for number, index in enumerate(members, 1):
            length = len(samples[index]["input_ids"])
            here = slice(start, start + length)
            for name in ("input_ids", "token_type_ids"):
                packed[name][row, here] = samples[index][name]
            packed["attention_mask"][row, here] = number
            packed["position_ids"][row, here] = range(length)
            start += length
    return packed


def unpack(outputs, lengths, rows):
    """What the packed model says of each sequence: outputs [rows, width] as a list of [S] by sequence."""
    found = [None] * len(lengths)
    for row, members in enumerate(rows):
        start = 0
        for index in members:
            found[index] = outputs[row, start : start + lengths[index]]
            start += lengths[index]
    return found
