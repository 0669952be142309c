"""The ledger's file: in the folder that is tuned, and a copy per run for predictions on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from trtopt.errors import ArtifactError, OutputError
from trtopt.files.atomic import write_atomically
from trtopt.files.bounded_reading import read_bounded, reason_of
from trtopt.records import DeviceInfo, Ledger, LedgerEntry, TuneScore, read_versioned, to_json
from trtopt.records.tune import CandidateKind
from trtopt.workflows.build.timing_cache_commands import store_folder
from trtopt.workflows.tune.prediction import score

LEDGER = "ledger.json"
_STORED = "ledgers"
_NAME_DIGITS = 16


def read_ledger(path: Path) -> Ledger:
    """A ledger's file."""
    try:
        return read_versioned(read_bounded(path), Ledger)
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path}: cannot be read as a ledger: {reason_of(error)}", "tune again into another folder"
        ) from None


def store_ledger(ledger: Ledger, cache_dir: str | Path | None) -> None:
    """Keep this machine's copy; where the store cannot be written to, there is none."""
    text = to_json(msgspec.structs.replace(ledger, entries=(), argv=(), run_spread=None))
    name = hashlib.sha256(text).hexdigest()[:_NAME_DIGITS]
    try:
        write_atomically(store_folder(cache_dir) / _STORED / f"{name}.json", to_json(ledger))
    except OutputError:
        return


def stored_ledgers(device: DeviceInfo, backend: str, cache_dir: str | Path | None) -> list[Ledger]:
    """This machine's ledgers of a device and backend; those that cannot be read are left out."""
    found = []
    for path in sorted((store_folder(cache_dir) / _STORED).glob("*.json")):
        try:
            ledger = read_ledger(path)
        except ArtifactError:
            continue
        if ledger.terms.device.name == device.name and ledger.terms.backend.name == backend:
            found.append(ledger)
    return found


def history_of(ledgers: Sequence[Ledger], present: Ledger) -> list[LedgerEntry]:
    """What predictions are corrected by: earlier ledgers' entries, and those of the present one."""
    earlier = [one for one in ledgers if one.created != present.created]
    return [entry for one in (*earlier, present) for entry in one.entries]


def score_of(ledgers: Sequence[Ledger], device: str) -> TuneScore:
    """The predictor's score over ledgers, in all and per kind."""
    entries = [entry for ledger in ledgers for entry in ledger.entries]
    kinds = [
        score([entry for entry in entries if entry.kind == name], name) for name in get_args(CandidateKind)
    ]
    return TuneScore(
        device=device,
        ledgers=len(ledgers),
        all=score(entries, "all"),
        kinds=tuple(one for one in kinds if one is not None),
    )
