"""The packed BERT says of every sequence in a row what BERT says of it alone."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime
import pytest
import torch

from trtopt.device.ort.reference import open_reference
from trtopt.export.export import export
from trtopt.export.source_module import from_spec
from trtopt.export.spec import files

WIDTH = 48
LENGTHS = [30, 5, 17, 48, 1, 9, 16, 22, 3, 12]
ROWS = [[3], [0, 2, 4], [7, 6, 5], [9, 1, 8]]


@pytest.fixture(scope="module")
def bert() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bert", files()["bert-base"].with_name("bert.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def samples() -> list[dict[str, np.ndarray]]:
    """Sequences without padding: tokens and segments [S] each."""
    rng = np.random.default_rng(0)
    return [
        {"input_ids": rng.integers(1, 100, length), "token_type_ids": rng.integers(0, 2, length)}
        for length in LENGTHS
    ]


@pytest.fixture(scope="module")
def alone(samples: list[dict[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """What PyTorch's unpacked BERT says of each sequence by itself: start and end logits [S]."""
    module = from_spec(files()["bert-base"], "tiny").module
    found = []
    for sample in samples:
        ids, segments = (torch.from_numpy(sample[name])[None] for name in ("input_ids", "token_type_ids"))
        with torch.no_grad():
            found.append([output[0].numpy() for output in module(ids, torch.ones_like(ids), segments)])
    return found


@pytest.mark.parametrize("rows", [ROWS, [[i] for i in range(len(LENGTHS))]])
def test_packed_and_alone_a_sequence_gets_the_same_outputs(
    bert: ModuleType,
    samples: list[dict[str, np.ndarray]],
    alone: list[list[np.ndarray]],
    rows: list[list[int]],
    tmp_path: Path,
) -> None:
    path = export(from_spec(files()["bert-base-packed"], "tiny"), tmp_path / "m.onnx", open_reference).path
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs = session.run(["start_logits", "end_logits"], bert.pack(samples, rows, WIDTH))
    for number, output in enumerate(outputs):
        for one, wanted in zip(bert.unpack(output, LENGTHS, rows), alone, strict=True):
            np.testing.assert_allclose(one, wanted[number], rtol=1e-4, atol=1e-5)


def test_without_the_mask_or_the_positions_the_outputs_are_others(
    bert: ModuleType, samples: list[dict[str, np.ndarray]], alone: list[list[np.ndarray]]
) -> None:
    """So that the test above can fail."""
    module = from_spec(files()["bert-base-packed"], "tiny").module
    inputs = bert.pack(samples, ROWS, WIDTH)
    one_sequence = inputs | {"attention_mask": (inputs["attention_mask"] > 0).astype(np.int64)}
    running_on = inputs | {"position_ids": np.tile(np.arange(WIDTH), (len(ROWS), 1))}
    for wrong in (one_sequence, running_on):
        with torch.no_grad():
            start, _ = module(*(torch.from_numpy(array) for array in wrong.values()))
        found = bert.unpack(start.numpy(), LENGTHS, ROWS)
        assert any(np.abs(one - wanted[0]).max() > 1e-2 for one, wanted in zip(found, alone, strict=True))


def test_one_sequence_a_row_with_padding_is_what_bert_says_of_it(
    bert: ModuleType, samples: list[dict[str, np.ndarray]]
) -> None:
    """With a mask of ones and zeros, and positions that run on, the packed model is the other one."""
    plain, packed = (from_spec(files()[name], "tiny").module for name in ("bert-base", "bert-base-packed"))
    inputs = [
        torch.from_numpy(array) for array in bert.pack(samples, [[i] for i in range(10)], WIDTH).values()
    ]
    places = torch.arange(WIDTH).expand(10, WIDTH)
    with torch.no_grad():
        (wanted, _), (found, _) = plain(*inputs[:3]), packed(*inputs[:3], places)
    tokens = inputs[1] > 0
    torch.testing.assert_close(found[tokens], wanted[tokens], rtol=1e-4, atol=1e-5)
