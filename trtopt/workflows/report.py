"""From a folder to all that it holds of one model: manifest, result files, profiles, checks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from trtopt.errors import ArtifactError, WrongPathError
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.files.manifests import MANIFEST, read_manifest
from trtopt.files.outputs import Kind, head_of
from trtopt.inspect.explanation import differences
from trtopt.records import (
    BenchReport,
    Collected,
    EngineDifference,
    Ledger,
    Manifest,
    ProfileReport,
    kind_of,
    read_versioned,
)
from trtopt.records.precision import CheckReport
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.profile.profile import read_profile
from trtopt.workflows.provenance import check_engines, check_model, engines_of
from trtopt.workflows.tune.tuned_folder import LEDGER, read_ledger

_APART = "keep the files of one build in a folder: move this one elsewhere, or make it again"

_GENERATOR = b'<meta name="generator" content="trtopt">'
PAGE = Kind("a page of trtopt report", lambda path: _GENERATOR in head_of(path))


def collect(folder: Path, *, leave_out_others: bool = False) -> Collected:
    """Read every JSON file of a folder, not of those below it.

    What is not for a report is left out with a reason; a file of trtopt's that is broken is an error. So is
    one of another build than the manifest's, which with `leave_out_others` is left out too.
    """
    if not folder.is_dir():
        problem, remedy = "no such folder", "give one that `trtopt build` or `trtopt profile` made"
        if folder.exists():
            problem, remedy = "is a file", f"give the folder that it lies in: {folder.parent}"
        raise WrongPathError(f"{folder}: {problem}", remedy)
    manifest: Manifest | None = None
    results: dict[str, BenchReport] = {}
    profiles: dict[str, ProfileReport] = {}
    checks: dict[str, CheckReport] = {}
    ledger: Ledger | None = None
    left_out: dict[str, str] = {}
    for file in sorted(folder.glob("*.json")):
        kind = _kind(file)
        if kind == "trtopt.bench":
            remedy = "make it again with `trtopt bench --json FILE`, or move it elsewhere"
            results[file.name] = read_result(file, remedy)
        elif kind == "trtopt.profile":
            profiles[file.name] = read_profile(file)
        elif kind == "trtopt.check":
            checks[file.name] = read_check(file)
        elif kind == "trtopt.ledger" and file.name == LEDGER:
            ledger = read_ledger(file)
        elif kind == "trtopt.build" and file.name == MANIFEST:
            manifest = read_manifest(folder)
        else:
            left_out[file.name] = f"a file of {kind}" if kind else "no record of trtopt's"
    if manifest is None and not results and not profiles:
        raise _nothing(folder, left_out)
    if manifest is not None:
        for name, check in list(checks.items()):
            if check.against_sha256 != manifest.source_sha256:
                left_out[name] = "a check against another model"
                del checks[name]
        traces = [manifest.rewrite.trace] if manifest.rewrite is not None else []
        for name in filter(None, (*(engine.layers for engine in manifest.engines), *traces)):
            left_out.pop(name, None)  # files that profiles are made of
    owner, model = MANIFEST, None if manifest is None else manifest.onnx.sha256
    reports: dict[str, BenchReport | ProfileReport] = {**results, **profiles}
    for name, report in reports.items():
        if model is None:
            owner, model = name, report.model_sha256
        try:
            check_model(report.model_sha256, model, folder / name, f"that of {owner}", _APART)
            if manifest is not None:
                check_engines(report, manifest, folder / name, folder, _APART)
        except ArtifactError:
            if manifest is None or not leave_out_others:
                raise
            results.pop(name, None)
            profiles.pop(name, None)
            left_out[name] = "of another build"
    return Collected(
        folder=str(folder),
        name=folder.resolve().name,
        manifest=manifest,
        results=results,
        profiles=profiles,
        checks=checks,
        ledger=ledger,
        left_out=left_out,
        notes=tuple(_unlike_engines(results, profiles)),
    )


def default_output(folder: Path, other: Path | None = None) -> Path:
    """The page's file where none is named: next to the folder, called after it, or after both."""
    place = folder.resolve()
    name = place.name if other is None else f"{place.name}-and-{other.resolve().name}"
    return folder.parent / f"{name}.html" if folder.name == place.name else place.parent / f"{name}.html"


def differences_of(a: Collected, b: Collected) -> tuple[EngineDifference, ...]:
    """Why B's engines take longer or less than A's, by the profiles of both."""
    first, second = (
        [engine for report in side.profiles.values() for engine in report.engines] for side in (a, b)
    )
    return differences(first, second)


def read_check(file: Path) -> CheckReport:
    """A result file of `trtopt check`."""
    remedy = "make it again with `trtopt check --json FILE`, or move it elsewhere"
    with reading_as("a check", file, remedy):
        return read_versioned(read_bounded(file), CheckReport)


def _nothing(folder: Path, left_out: dict[str, str]) -> ArtifactError:
    found = "; ".join(f"{name} is {reason}" for name, reason in left_out.items()) or "it has no JSON files"
    where = shlex.quote(str(folder))
    return WrongPathError(
        f"{folder}: holds nothing to report on: {found}",
        f"`trtopt profile PATH -o {where}` and `trtopt bench PATH --json {where}/bench.json` make what is",
    )


def _kind(file: Path) -> str | None:
    """What of trtopt's a file is."""
    try:
        return kind_of(read_bounded(file)) if file.is_file() else None
    except ValueError:  # too large for a file of trtopt's
        return None
    except OSError as error:
        raise ArtifactError(f"{file}: cannot be read ({error.strerror})", "check its permissions") from None


def _unlike_engines(results: dict[str, BenchReport], profiles: dict[str, ProfileReport]) -> Iterator[str]:
    """Two builds of one model are two engines: their figures need not agree."""
    for (result, measured), (profile, inside) in product(results.items(), profiles.items()):
        if measured.environment.backend.name != inside.environment.backend.name:
            continue
        engines = dict(engines_of(inside))
        for batch, engine in engines_of(measured):
            if batch in engines and engines[batch].sha256 != engine.sha256:
                yield (
                    f"batch {batch}: {result} and {profile} were made with two builds of the model: "
                    "their figures need not agree"
                )
