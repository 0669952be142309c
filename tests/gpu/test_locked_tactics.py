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
    print(first.engines[0].notes, first.alarms, *lock.engines[0].layers, sep="\n")
    assert lock.engines[0].layers

    held = trtopt.build(DIGITS, tmp_path / "b", locked=file, lock=again, **terms)
    assert held.engines[0].notes[-1].endswith("held")
    made = from_json(again.read_bytes(), TacticLock).engines[0].layers
    assert sorted(made, key=repr) == sorted(lock.engines[0].layers, key=repr)

    loose, *rest = lock.engines[0].layers
    other = msgspec.structs.replace(loose, tactic="0x00000000deadbeef")
    engine = msgspec.structs.replace(lock.engines[0], layers=(other, *rest))
    file.write_bytes(to_json(msgspec.structs.replace(lock, engines=(engine,))))
    with pytest.raises(BuildError) as failure:
        trtopt.build(DIGITS, tmp_path / "c", locked=file, **terms)
    assert loose.layer in failure.value.problem
    assert not (tmp_path / "c").exists()
