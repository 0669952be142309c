"""Checkpoints that are damaged, or hold other things than plain tensors: they load, or are refused."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
import torch

from trtopt.errors import UsageError
from trtopt.export.source_module import load_checkpoint, read_checkpoint


def _module() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))


def _saved(**how: bool) -> bytes:
    torch.manual_seed(0)
    buffer = io.BytesIO()
    torch.save(_module().state_dict(), buffer, **how)
    return buffer.getvalue()


SEEDS = [_saved(), _saved(_use_new_zipfile_serialization=False)]


def mutant(number: int) -> bytes:
    """A checkpoint with a few bytes changed, moved or missing, most of them in its pickle."""
    draw = random.Random(number)
    content = bytearray(SEEDS[number % len(SEEDS)])
    reach = draw.choice([len(content), 1000])
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(min(reach, len(content)))
        match draw.randrange(4):
            case 0:
                content[at] ^= 1 << draw.randrange(8)
            case 1:
                content[at] = draw.randrange(256)
            case 2:
                other = draw.randrange(min(reach, len(content)))
                content[at : at + 8] = content[other : other + 8]
            case _:
                del content[at : at + draw.choice([1, 8, len(content)])]
                content += b"" if content else b"x"
    return bytes(content)


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_checkpoint_loads_or_is_refused(tmp_path: Path) -> None:
    refused = 0
    for number in range(200):
        path = tmp_path / "damaged.pt"
        path.write_bytes(mutant(number))
        try:
            load_checkpoint(_module(), path, strict=True)
        except UsageError:
            refused += 1
    assert 0 < refused < 200


def _odd() -> dict[str, tuple[torch.Tensor, str]]:
    dense = torch.ones(4, 8)
    return {
        "quantised": (torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8), "quantised (torch.qint8)"),
        "sparse": (dense.to_sparse(), "sparse (torch.sparse_coo)"),
        "meta": (dense.to("meta"), "on device meta"),
        "complex": (dense.to(torch.complex64), "complex (torch.complex64)"),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["quantised", "sparse", "meta", "complex"])
def test_what_is_no_plain_tensor_is_refused_by_its_key(kind: str, tmp_path: Path) -> None:
    tensor, told = _odd()[kind]
    torch.save(_module().state_dict() | {"0.weight": tensor}, tmp_path / "odd.pt")
    module = _module()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(UsageError) as refused:
        load_checkpoint(module, tmp_path / "odd.pt", strict=True)
    assert f"0.weight: {told}" in str(refused.value)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_keys_that_are_one_without_their_prefix_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1), "module.a": torch.zeros(1)}, tmp_path / "twice.pt")
    with pytest.raises(UsageError, match="keys twice"):
        read_checkpoint(tmp_path / "twice.pt")
