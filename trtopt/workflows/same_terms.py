"""Whether a folder that is to be continued was begun with the same model, on the same machine and terms."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from trtopt.errors import ArtifactError
from trtopt.records import SweepTerms, TuneTerms


def check_same_terms(what: str, there: SweepTerms | TuneTerms, here: SweepTerms | TuneTerms) -> None:
    """Refuse to continue on other terms; `what` is such as `out: is a sweep`.

    Raises:
        ArtifactError: with all that differs.
    """
    if there == here:
        return
    if there.model_sha256 != here.model_sha256:
        raise ArtifactError(f"{what} of another model (hashes differ)", "choose another folder with -o")
    machine = [
        *_differences(there.device, here.device, "here"),
        *_differences(there.backend, here.backend, "here"),
    ]
    if machine:
        raise ArtifactError(
            f"{what} of another machine: {'; '.join(machine)}",
            "figures of two machines do not compare: choose another folder with -o",
        )
    raise ArtifactError(
        f"{what} on other terms: {'; '.join(_differences(there, here, 'now'))}",
        "give the options that it began with, or choose another folder with -o",
    )


def _differences(one: msgspec.Struct, other: msgspec.Struct, now: str) -> Iterator[str]:
    for name in one.__struct_fields__:
        before, after = getattr(one, name), getattr(other, name)
        if before != after:
            yield f"{name.replace('_', ' ')} {_shown(before)}, {now} {_shown(after)}"


def _shown(value: object) -> str:
    return str(getattr(value, "name", "unknown" if value is None else value))
