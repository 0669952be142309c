"""BERT (Devlin et al. 2018, arXiv:1810.04805) with heads for question answering and sentence embedding.

Parameter names are those of transformers, so that its checkpoints load.
"""

import math

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

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        """[N, S] twice → [N, S, hidden]."""
        positions = self.position_embeddings.weight[: ids.shape[1]]
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
        """[N, S, hidden] and a bias [N, 1, 1, S] on the scores → [N, S, hidden]."""
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
        x = self.embeddings(ids, segments)
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e4  # fits FP16
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
