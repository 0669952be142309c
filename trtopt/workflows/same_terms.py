"""Whether a folder that is to be continued was begun with the same model, on the same machine and terms."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from trtopt.errors import ArtifactError
from trtopt.records import SweepTerms, TuneTerms

_HASH = re.compile("[0-9a-f]{64}")
_HASH_DIGITS = 12
"""Enough to tell samples apart."""


def check_same_terms(what: str, there: SweepTerms | TuneTerms, here: SweepTerms | TuneTerms) -> None:
    """Refuse to continue on other terms; `what` is such as `out: was tuned`.

    Raises:
        ArtifactError: with all that differs.
    """
    if there == here:
        return
    if there.model_sha256 != here.model_sha256:
        raise ArtifactError(f"{what} for another model (hashes differ)", "choose another folder with -o")
    if device := [*_differences(there.device, here.device, "here")]:
        raise ArtifactError(
            f"{what} on another machine: {'; '.join(device)}",
            "figures of two machines do not compare: choose another folder with -o",
        )
    if there.backend != here.backend:
        raise ArtifactError(
            f"{what} with {there.backend}, here is {here.backend}",
            "figures of two versions do not compare: choose another folder with -o",
        )
    raise ArtifactError(
        f"{what} on other terms: {'; '.join(_differences(there, here, 'now'))}",
        "give the options that it began with, or choose another folder with -o",
    )


def _differences(one: msgspec.Struct, other: msgspec.Struct, now: str) -> Iterator[str]:
    for name in one.__struct_fields__:
        before, after = getattr(one, name), getattr(other, name)
        if before != after:
            yield f"{name.removesuffix('_s').replace('_', ' ')} {_shown(before)}, {now} {_shown(after)}"


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return " and ".join(f"{name} {one}" for name, one in value.items())
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    text = str(getattr(value, "name", value))
    return text[:_HASH_DIGITS] if _HASH.fullmatch(text) else text
