"""Ledgers of this machine: stored, found again by device and backend, and refused for others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from tests.support import examples
from tests.support.ledgers import entry, ledger, won
from trtopt.errors import ArtifactError
from trtopt.recipe import Recipe, recipe_json
from trtopt.records import Backend, FinalRace, Ledger, from_json, to_json
from trtopt.workflows.provenance import check_same_terms
from trtopt.workflows.tune.tuned_folder import (
    LEDGER,
    TunedFolder,
    history_of,
    read_ledger,
    store_ledger,
    stored_ledgers,
)

RTX = Backend(name="tensorrt-rtx", version="1.7")


def at(created: str, found: Ledger) -> Ledger:
    return msgspec.structs.replace(found, created=created)


def test_a_ledger_survives_its_json_form() -> None:
    found = ledger(won(0.1), entry())
    assert from_json(to_json(found), Ledger) == found


def test_a_longer_ledger_takes_the_place_of_the_shorter_one_of_its_run(tmp_path: Path) -> None:
    first, other = ledger(entry()), at("2026-11-24", ledger(won(0.2)))
    raced = FinalRace(changes=("opt_level=5",), gain=0.1, low=0.0, high=0.2, is_faster=True)
    longer = msgspec.structs.replace(ledger(entry(), won(0.1)), lost_s=9.0, final=raced)
    for one in (first, longer, other):
        store_ledger(one, tmp_path)
    device, backend = first.terms.device, first.terms.backend.name
    found = stored_ledgers(device, backend, tmp_path)
    assert sorted(len(one.entries) for one in found) == [1, 2]
    assert stored_ledgers(device, RTX.name, tmp_path) == []
    assert stored_ledgers(msgspec.structs.replace(device, name="another"), backend, tmp_path) == []


def test_a_damaged_ledger_is_left_out_of_the_history_and_refused_by_name(tmp_path: Path) -> None:
    found = ledger(entry())
    store_ledger(found, tmp_path)
    (file,) = (tmp_path / "ledgers").iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    assert stored_ledgers(found.terms.device, found.terms.backend.name, tmp_path) == []
    with pytest.raises(ArtifactError, match="cannot be read as a ledger"):
        read_ledger(file)


def test_a_folder_that_an_earlier_version_tuned_is_refused_by_its_version(tmp_path: Path) -> None:
    """An accepted rewrite rule was not in its recipe, so that further builds would lack it."""
    found = ledger(won(0.1))
    (tmp_path / LEDGER).write_bytes(to_json(found).replace(b"trtopt.ledger/6", b"trtopt.ledger/2"))
    with pytest.raises(ArtifactError, match=r"trtopt\.ledger/2"):
        TunedFolder(tmp_path, None).read(found.terms)


def test_a_store_that_cannot_be_written_to_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("no folder")
    store_ledger(ledger(), tmp_path / "store")
    assert (tmp_path / "store").read_text() == "no folder"


def test_a_run_learns_from_others_and_from_itself_once() -> None:
    earlier, present = at("2026-11-22", ledger(won(0.1))), ledger(entry())
    assert history_of([earlier, present], present) == [won(0.1), entry()]


def test_a_ledger_of_another_model_machine_version_or_objective_is_refused() -> None:
    terms = ledger().terms
    newer = msgspec.structs.replace(terms.backend, version="99.0")
    for change, message in (
        ({"model_sha256": "b" * 64}, "another model"),
        ({"device": msgspec.structs.replace(examples.GPU, uuid="GPU-2")}, "another machine: uuid GPU-1"),
        ({"backend": newer}, f"was tuned with {terms.backend}, here is {newer}"),
        ({"objective": "p99"}, "other terms: objective latency, now p99"),
        ({"data": "ab" * 32}, "other terms: data none, now abababababab(?!ab)"),
        ({"bounds": {"min_sqnr": 3.0}}, "now min_sqnr 3.0"),
    ):
        with pytest.raises(ArtifactError, match=message):
            check_same_terms("out: was tuned", terms, msgspec.structs.replace(terms, **change))
    check_same_terms("out: was tuned", terms, ledger(entry()).terms)


def test_recipes_differ_by_the_field() -> None:
    began = msgspec.structs.replace(ledger().terms, recipe=recipe_json(Recipe(rewrite="all")))
    now = msgspec.structs.replace(began, recipe=recipe_json(Recipe(rewrite="none")))
    with pytest.raises(ArtifactError, match=r"on other terms: rewrite all, now none\n"):
        check_same_terms("out: was tuned", began, now)
    newer = msgspec.structs.replace(began, recipe=json.dumps(json.loads(began.recipe) | {"colour": "red"}))
    with pytest.raises(ArtifactError, match="on other terms: colour red, now none"):
        check_same_terms("out: was tuned", newer, began)
    for edited in ("{", "[1]"):
        with pytest.raises(ArtifactError, match="recipe that cannot be read"):
            check_same_terms("out: was tuned", msgspec.structs.replace(began, recipe=edited), began)


@pytest.mark.parametrize(
    "edited", ['"measured_gain":1.0', '"cost_s":-5.0', '"predicted_cost_s":-1.0', '"cost_s":"1"']
)
def test_figures_that_cannot_be_are_refused(edited: str, tmp_path: Path) -> None:
    text = to_json(ledger(won(0.1))).decode()
    changed = re.sub(rf"{edited.partition(':')[0]}: ?-?[0-9.e-]+", edited, text, count=1)
    assert changed != text
    (tmp_path / "ledger.json").write_text(changed)
    with pytest.raises(ArtifactError, match="cannot be read as a ledger"):
        read_ledger(tmp_path / "ledger.json")
