"""Where records and files come from: machine, command, time; and whether two belong together: by hashes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from trtopt.device.environment import survey as survey
from trtopt.errors import ArtifactError
from trtopt.records import BenchReport, EngineRef, Manifest, ProfileReport, SweepTerms, TuneTerms


def command_line() -> tuple[str, ...]:
    """The command for records; without the folders of the program, which are private."""
    return (Path(sys.argv[0]).name, *sys.argv[1:])


def now() -> str:
    """The time of day for records: ISO 8601, UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def engines_of(report: BenchReport | ProfileReport) -> list[tuple[int, EngineRef]]:
    """Every batch size with the engine that was measured or looked into."""
    if isinstance(report, BenchReport):
        return [(point.batch, point.latency.engine) for point in report.points]
    return [(engine.batch, engine.engine) for engine in report.engines]


def check_model(found: str, expected: str, where: Path, model: str, remedy: str) -> None:
    """Both hashes must be of one model."""
    if found != expected:
        raise ArtifactError(f"{where}: is of another model than {model} (hashes differ)", remedy)


def check_engines(
    report: BenchReport | ProfileReport, manifest: Manifest, where: Path, folder: Path, remedy: str
) -> None:
    """Engines must be the folder's, unless the model ran on another backend than they are for."""
    if report.environment.backend.name != manifest.engines[0].plan.backend.name:
        return
    known = {engine.sha256 for engine in manifest.engines}
    for batch, engine in engines_of(report):
        if engine.sha256 not in known:
            raise ArtifactError(
                f"{where}: batch {batch} is of another engine than {folder} holds (hashes differ)", remedy
            )


_HASH = re.compile("[0-9a-f]{64}")
_HASH_DIGITS = 12
"""Enough to tell samples apart."""


def check_same_terms(what: str, there: SweepTerms | TuneTerms, here: SweepTerms | TuneTerms) -> None:
    """Refuse to continue on other terms; `what` is such as `out: was tuned`."""
    if there == here:
        return
    if there.model_sha256 != here.model_sha256:
        raise ArtifactError(f"{what} for another model (hashes differ)", "choose another folder with -o")
    if device := [*_differences(asdict(there.device), asdict(here.device), "here")]:
        raise ArtifactError(
            f"{what} on another machine: {'; '.join(device)}",
            "figures of two machines do not compare: choose another folder with -o",
        )
    if there.backend != here.backend:
        raise ArtifactError(
            f"{what} with {there.backend}, here is {here.backend}",
            "figures of two versions do not compare: choose another folder with -o",
        )
    try:
        terms = "; ".join(_differences(asdict(there), asdict(here), "now"))
    except msgspec.DecodeError as error:
        raise ArtifactError(
            f"{what} with a recipe that cannot be read: {error}", "choose another folder with -o"
        ) from None
    raise ArtifactError(
        f"{what} on other terms: {terms}",
        "give the options that it began with, or choose another folder with -o",
    )


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], word: str) -> Iterator[str]:
    for name in dict.fromkeys((*one, *other)):
        before, after = one.get(name), other.get(name)
        if before != after and name == "recipe":
            began, given = (
                msgspec.json.decode(text, type=dict[str, Any]) for text in (one[name], other[name])
            )
            yield from _differences(began, given, word)
        elif before != after:
            yield f"{name.removesuffix('_s').replace('_', ' ')} {_shown(before)}, {word} {_shown(after)}"


def _shown(value: object) -> str:
    if value in (None, {}, (), []):
        return "none"
    if isinstance(value, dict):
        return " and ".join(f"{name} {one}" for name, one in value.items())
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    text = str(getattr(value, "name", value))
    return text[:_HASH_DIGITS] if _HASH.fullmatch(text) else text
