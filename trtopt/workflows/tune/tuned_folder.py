"""The folder that is tuned: a build folder of the best engine so far, with the ledger that led there.

A better engine and the ledger's entry on it take their place in one step, so that a run can be killed at any
moment and continued: what the ledger lists is not measured again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from trtopt.errors import ArtifactError, OutputError
from trtopt.files.atomic import link_or_copy, write_atomically, writing
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.files.manifests import MANIFEST, is_build_folder, read_manifest, write_manifest
from trtopt.files.outputs import check_folder_replaceable, folder_in_progress
from trtopt.recipe import Recipe, recipe_json
from trtopt.records import (
    DeviceInfo,
    EngineArtifact,
    Ledger,
    LedgerEntry,
    Manifest,
    TuneTerms,
    TuningChoice,
    from_json,
    read_versioned,
    to_json,
)
from trtopt.records.build import FolderCheck
from trtopt.workflows.build.folder import check_folder, compare_with_manifest
from trtopt.workflows.cache_folder import store_folder
from trtopt.workflows.profile.profile import PROFILE_FILE
from trtopt.workflows.provenance import check_same_terms


@dataclass(frozen=True)
class Built:
    """A build folder with one engine, the recipe of that, and what it is run with."""

    folder: Path
    manifest: Manifest
    recipe: Recipe
    batch: int
    streams: int

    @property
    def engine(self) -> EngineArtifact:
        """The engine of the batch size."""
        return next(one for one in self.manifest.engines if one.plan.span_of(self.batch) is not None)

    @property
    def selected(self) -> str | None:
        """The candidate that was selected for it among precisions; None if none was."""
        verdict = self.manifest.verdict
        return None if verdict is None else verdict.batches[0].chosen


LEDGER = "ledger.json"
_STORED = "ledgers"
_NAME_DIGITS = 16


def read_ledger(path: Path) -> Ledger:
    """A ledger's file."""
    with reading_as("a ledger", path, "tune again into another folder"):
        return read_versioned(read_bounded(path), Ledger)


def store_ledger(ledger: Ledger, cache_dir: str | Path | None) -> None:
    """Keep this machine's copy; where the store cannot be written to, there is none."""
    begun = msgspec.structs.replace(ledger, argv=(), run_spread=None, lost_s=0.0, entries=(), final=None)
    name = hashlib.sha256(to_json(begun)).hexdigest()[:_NAME_DIGITS]
    with suppress(OutputError):
        write_atomically(store_folder(cache_dir) / _STORED / f"{name}.json", to_json(ledger))


def stored_ledgers(device: DeviceInfo, backend: str, cache_dir: str | Path | None) -> list[Ledger]:
    """This machine's ledgers of a device and backend; those that cannot be read are left out."""
    found = []
    for path in sorted((store_folder(cache_dir) / _STORED).glob("*.json")):
        with suppress(ArtifactError):
            found.append(read_ledger(path))
    own = (device.name, backend)
    return [one for one in found if (one.terms.device.name, one.terms.backend.name) == own]


def history_of(ledgers: Sequence[Ledger], present: Ledger) -> list[LedgerEntry]:
    """What predictions are corrected by: earlier ledgers' entries, and those of the present one."""
    earlier = [one for one in ledgers if one.created != present.created]
    return [entry for one in (*earlier, present) for entry in one.entries]


BASELINE = "baseline.engine"
"""The baseline's engine, kept so that the result can be raced against it."""


@dataclass(frozen=True)
class TunedFolder:
    """Where the result lies, and the store for this machine's copies of ledgers."""

    path: Path
    cache_dir: str | Path | None

    def continues(self, resume: bool) -> bool:
        """Whether there is a ledger to continue."""
        if (self.path / LEDGER).is_file():
            if not resume:
                raise OutputError(
                    f"{self.path}: holds a tuned build",
                    "continue it with --resume, or choose another name with -o",
                )
            return True
        if is_build_folder(self.path):
            raise OutputError(
                f"{self.path}: exists and has no {LEDGER}", "choose another name with -o, or remove it"
            )
        check_folder_replaceable(self.path.resolve())
        return False

    def read(self, terms: TuneTerms) -> tuple[Ledger, Built]:
        """Where an earlier run on the same terms ended."""
        ledger = read_ledger(self.path / LEDGER)
        check_same_terms(f"{self.path}: was tuned", ledger.terms, terms)
        if not (self.path / MANIFEST).is_file():
            raise ArtifactError(f"{self.path}: has a {LEDGER}, but no {MANIFEST}", "tune into another folder")
        manifest = read_manifest(self.path)
        _refuse_damage(self.path, check_folder(self.path), "since the last run")
        with reading_as("a tuned build's", self.path / MANIFEST, "tune into another folder"):
            if (chosen := manifest.tuning) is None:
                raise ValueError("it names no choice")
            recipe = from_json(chosen.recipe.encode(), Recipe)
            runs = any(engine.plan.span_of(chosen.batch) for engine in manifest.engines)
            if recipe.batch != (chosen.batch,) or not runs:
                raise ValueError(f"its recipe or its engines are not of batch {chosen.batch}")
        return ledger, Built(self.path, manifest, recipe, chosen.batch, chosen.streams)

    def check_undamaged(self, when: str) -> None:
        """Refuse a best engine so far that is not as it was put there; `when` ends the message."""
        _refuse_damage(self.path, compare_with_manifest(self.path, self._manifest()), when)

    def _manifest(self) -> Manifest:
        if not (self.path / MANIFEST).is_file():
            raise OutputError(
                f"{self.path}: was moved or removed while it was tuned", "tune again; leave the folder there"
            )
        return read_manifest(self.path)

    def save(self, ledger: Ledger) -> None:
        """Replace the ledger, with its hash in the manifest, and this machine's copy."""
        content = to_json(ledger)
        manifest = self._manifest()
        write_atomically(self.path / LEDGER, content)
        own = {LEDGER: hashlib.sha256(content).hexdigest()}
        if manifest.files.get(LEDGER) != own[LEDGER]:
            if manifest.tuning is not None:
                choice = msgspec.structs.replace(manifest.tuning, gain=ledger.gain)
                manifest = msgspec.structs.replace(manifest, tuning=choice)
            write_manifest(self.path, manifest, files=manifest.files | own)
        store_ledger(ledger, self.cache_dir)

    def replace(self, built: Built, ledger: Ledger) -> Built:
        """Put a build, whose files move, and the ledger in place at once."""
        with folder_in_progress(self.path) as temporary:
            with writing(self.path):
                for path in sorted(built.folder.iterdir()):
                    path.rename(temporary / path.name)
                if (self.path / BASELINE).is_file():
                    link_or_copy(self.path / BASELINE, temporary / BASELINE)
            write_atomically(temporary / LEDGER, to_json(ledger))
            choice = TuningChoice(
                objective=ledger.terms.objective,
                batch=built.batch,
                streams=built.streams,
                changes=ledger.accepted,
                recipe=recipe_json(built.recipe),
                gain=ledger.gain,
                ledger=LEDGER,
            )
            manifest = write_manifest(temporary, msgspec.structs.replace(built.manifest, tuning=choice))
        store_ledger(ledger, self.cache_dir)
        return replace(built, folder=self.path, manifest=manifest)


def kept_baseline(built: Built) -> EngineArtifact:
    """The engine of the baseline, kept in its folder under a name that no candidate's engine has."""
    with writing(built.folder / BASELINE):
        link_or_copy(built.folder / built.engine.path, built.folder / BASELINE)
    return msgspec.structs.replace(built.engine, path=BASELINE, log="", layers=None)


def _refuse_damage(folder: Path, found: FolderCheck, when: str) -> None:
    damaged = {*found.missing, *found.changed} - {LEDGER, PROFILE_FILE}  # which may be newer
    if damaged:
        raise ArtifactError(
            f"{folder}: {', '.join(sorted(damaged))}: missing or changed {when}", "tune into another folder"
        )
