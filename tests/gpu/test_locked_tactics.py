"""Tactics recorded and held by TensorRT itself."""

from pathlib import Path

import msgspec
import pytest

import trtopt
from tests.support.gpu_digits import DIGITS, SOURCES
from trtopt.errors import BuildError
from trtopt.records import TacticLock, from_json, to_json


def test_a_locked_build_gets_the_tactics_of_its_lock_or_names_the_layer(tmp_path: Path) -> None:
    file, again = tmp_path / "lock.json", tmp_path / "again.json"
    terms = {"backend": "tensorrt", "tactic_sources": SOURCES, "precision": "fp16", "batch": 8}
    first = trtopt.build(DIGITS, tmp_path / "a", lock=file, **terms)
    lock = from_json(file.read_bytes(), TacticLock)
    layers = lock.engines["batch8"]
    print(first.engines[0].notes, first.alarms, *layers, sep="\n")

    held = trtopt.build(DIGITS, tmp_path / "b", locked=file, lock=again, **terms)
    assert held.engines[0].notes[-1].endswith("held")
    made = from_json(again.read_bytes(), TacticLock).engines["batch8"]
    assert sorted(made, key=repr) == sorted(layers, key=repr)

    loose, *rest = layers
    other = msgspec.structs.replace(loose, tactic="0x00000000deadbeef")
    file.write_bytes(to_json(msgspec.structs.replace(lock, engines={"batch8": (other, *rest)})))
    with pytest.raises(BuildError) as failure:
        trtopt.build(DIGITS, tmp_path / "c", locked=file, **terms)
    assert loose.layer in failure.value.problem
    assert not (tmp_path / "c").exists()
