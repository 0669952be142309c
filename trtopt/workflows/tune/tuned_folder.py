"""The folder that is tuned: a build folder of the best engine so far, with the ledger that led there.

A better engine and the ledger's entry on it take their place in one step, so that a run can be killed at any
moment and continued: what the ledger lists is not measured again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from trtopt.errors import ArtifactError, OutputError
from trtopt.files.atomic import cannot_write, write_atomically
from trtopt.files.build_folder import folder_in_progress
from trtopt.files.links import link_or_copy
from trtopt.files.manifests import MANIFEST, read_manifest, write_manifest
from trtopt.recipe import Recipe, recipe_json
from trtopt.records import EngineArtifact, Ledger, Manifest, TuneTerms, TuningChoice, to_json
from trtopt.records.build import FolderCheck
from trtopt.workflows.build.rebuild import check_folder, compared_files
from trtopt.workflows.profile.profile import PROFILE_FILE
from trtopt.workflows.same_terms import check_same_terms
from trtopt.workflows.tune.built import Built
from trtopt.workflows.tune.ledger import LEDGER, read_ledger, store_ledger

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
        if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
            raise OutputError(
                f"{self.path}: exists and has no {LEDGER}", "choose another name with -o, or remove it"
            )
        return False

    def read(self, terms: TuneTerms) -> tuple[Ledger, Built]:
        """Where an earlier run on the same terms ended."""
        ledger = read_ledger(self.path / LEDGER)
        check_same_terms(f"{self.path}: was tuned", ledger.terms, terms)
        if not (self.path / MANIFEST).is_file():
            raise ArtifactError(f"{self.path}: has a {LEDGER}, but no {MANIFEST}", "tune into another folder")
        manifest = read_manifest(self.path)
        chosen = manifest.tuning
        if chosen is None:
            raise OutputError(
                f"{self.path}: has a {LEDGER}, but its build is not a tuned one",
                "tune into another folder",
            )
        _refuse_damage(self.path, check_folder(self.path), "since the last run")
        try:
            recipe = msgspec.json.decode(chosen.recipe, type=Recipe)
        except msgspec.DecodeError as error:
            raise ArtifactError(
                f"{self.path}: the recipe in its {MANIFEST} cannot be read: {error}",
                "tune into another folder",
            ) from None
        if not any(engine.plan.span_of(chosen.batch) for engine in manifest.engines):
            raise ArtifactError(
                f"{self.path}: no engine in its {MANIFEST} runs batch {chosen.batch}",
                "tune into another folder",
            )
        return ledger, Built(self.path, manifest, recipe, chosen.batch, chosen.streams, chosen.changes)

    def check_undamaged(self, when: str) -> None:
        """Refuse a best engine so far that is not as it was put there; `when` ends the message."""
        _refuse_damage(self.path, compared_files(self.path, self._manifest()), when)

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
            try:
                for path in sorted(built.folder.iterdir()):
                    path.rename(temporary / path.name)
                if (self.path / BASELINE).is_file():
                    link_or_copy(self.path / BASELINE, temporary / BASELINE)
            except OSError as error:
                raise cannot_write(self.path, error) from None
            write_atomically(temporary / LEDGER, to_json(ledger))
            choice = TuningChoice(
                objective=ledger.terms.objective,
                batch=built.batch,
                streams=built.streams,
                changes=built.changes,
                recipe=recipe_json(built.recipe),
                gain=ledger.gain,
                ledger=LEDGER,
            )
            manifest = write_manifest(temporary, msgspec.structs.replace(built.manifest, tuning=choice))
        store_ledger(ledger, self.cache_dir)
        return replace(built, folder=self.path, manifest=manifest)


def kept_baseline(built: Built) -> EngineArtifact:
    """The engine of the baseline, kept in its folder under a name that no candidate's engine has."""
    try:
        link_or_copy(built.folder / built.engine.path, built.folder / BASELINE)
    except OSError as error:
        raise cannot_write(built.folder / BASELINE, error) from None
    return msgspec.structs.replace(built.engine, path=BASELINE, log="", layers=None, memory=None)


def _refuse_damage(folder: Path, found: FolderCheck, when: str) -> None:
    damaged = {*found.missing, *found.changed} - {LEDGER, PROFILE_FILE}  # which may be newer
    if damaged:
        raise ArtifactError(
            f"{folder}: {', '.join(sorted(damaged))}: missing or changed {when}", "tune into another folder"
        )
