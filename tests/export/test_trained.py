"""The trained networks: what they score in PyTorch's terms is what their files score."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from trtopt.device.ort.reference import open_reference
from trtopt.errors import BackendMissingError
from trtopt.export.export import export
from trtopt.export.source_module import Subject, from_spec, sibling_function
from trtopt.export.spec import files, folder, read_spec

SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal.",
    "A plane is taking off.",
    "An aircraft leaves the runway.",
    "The cat sits on the mat.",
    "A kitten rests on a rug.",
    "Stock prices fell sharply on Monday.",
    "Markets dropped at the start of the week.",
    "She plays the violin in an orchestra.",
    "He performs Mozart on stage.",
    "The recipe needs two eggs and flour.",
    "Bake the cake for forty minutes.",
]


def test_the_digits_transformer_is_as_accurate_as_stated() -> None:
    path = files()["digits-transformer"]
    spec = read_spec(path)
    held = np.load(path.parent / str(spec.data))
    file = path.parent / str(spec.onnx)
    assert file.stat().st_size < 1_000_000
    logits = open_reference(file)({"tokens": held["tokens"].astype(np.int64)})["logits"]
    accuracy = sibling_function(path, str(spec.metric))(logits, held["labels"])
    assert round(accuracy * len(held["labels"])) == 533
    assert len(held["labels"]) == 540


def test_the_digits_transformer_states_its_parameters() -> None:
    path = files()["digits-transformer"]
    spec = read_spec(path)
    sys.path.insert(0, str(folder() / "digits_transformer"))
    try:
        train = pytest.importorskip("train", reason="its script needs scikit-learn", exc_type=ImportError)
    finally:
        sys.path.remove(str(folder() / "digits_transformer"))
    assert (
        sum(weight.numel() for weight in train.Classifier().parameters()) == spec.variants["full"].parameters
    )


@pytest.fixture(scope="module")
def minilm() -> Subject:
    try:
        return from_spec(files()["minilm"], "full")
    except BackendMissingError as error:
        pytest.skip(error.problem)


def _tokens(sentences: list[str]) -> dict[str, np.ndarray]:
    return sibling_function(files()["minilm"], "minilm.py:tokenize")(sentences)


def test_the_sentence_embedder_finds_the_sentence_that_means_the_same(minilm: Subject) -> None:
    with torch.no_grad():
        vectors = minilm.module(*(torch.from_numpy(array) for array in _tokens(SENTENCES).values()))
    likeness = vectors @ vectors.T
    likeness.fill_diagonal_(-1.0)
    nearest = likeness.argmax(1).tolist()
    pairs = [index ^ 1 for index in range(len(SENTENCES))]
    assert sum(a == b for a, b in zip(nearest, pairs, strict=True)) >= 10


def test_the_exported_embedder_retrieves_what_pytorch_retrieves(minilm: Subject, tmp_path: Path) -> None:
    tokens = _tokens(SENTENCES)
    with torch.no_grad():
        wanted = minilm.module(*(torch.from_numpy(array) for array in tokens.values())).numpy()
    exported = export(minilm, tmp_path / "m.onnx", open_reference)
    found = open_reference(exported.path)(tokens)["embedding"]
    agreement = sibling_function(files()["minilm"], "minilm.py:retrieval_agreement")
    assert agreement(wanted, found) >= 1.0


def test_retrieval_agreement_is_a_share_of_neighbours() -> None:
    agreement = sibling_function(files()["minilm"], "minilm.py:retrieval_agreement")
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((40, 8))
    assert agreement(vectors, vectors * 3.0) == 1.0
    assert agreement(vectors, rng.standard_normal((40, 8))) < 0.3


def test_the_tokenizer_splits_as_the_packaged_one_does() -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    place = sibling_function(files()["minilm"], "minilm.py:folder")
    try:
        theirs = tokenizers.Tokenizer.from_file(str(place() / "tokenizer.json"))
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    theirs.no_padding()
    texts = [
        *SENTENCES,
        "Café déjà-vu, naïve!",
        "unbelievably e-mail@x.org 3.14",
        "don't",
        "日本 ok",
        "x" * 50,
    ]
    for text in texts:
        assert _tokens([text])["input_ids"][0].tolist() == theirs.encode(text).ids, text


def test_the_committed_files_are_valid_onnx_of_opset_17() -> None:
    path = files()["digits-transformer"]
    model = onnx.load(path.parent / str(read_spec(path).onnx))
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == 17
