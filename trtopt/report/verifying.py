"""The findings on a build folder, and the differences of a rebuild, as lines."""

from __future__ import annotations

from collections.abc import Sequence

from trtopt.records.build import FolderCheck, RebuildDifference

_SIGNATURE = "manifest.sig"  # of versions that signed builds themselves


def check_lines(folder: str, check: FolderCheck) -> list[str]:
    """A summary, and a line for every file that changed since the build."""
    lines = [f"missing: {name}" for name in check.missing]
    lines += [f"changed: {name}" for name in check.changed]
    lines += [f"not of this build: {name}" for name in check.extra]
    if _SIGNATURE in check.extra:
        lines.append(f"{_SIGNATURE} was not checked: sign manifest.json with cosign or minisign instead")
    bad = len(check.missing) + len(check.changed)
    whole = f"{check.checked - bad} of {check.checked}" if bad else f"all {check.checked}"
    return [f"{folder}: {whole} files are unchanged since the build", *lines]


def change_lines(changes: Sequence[RebuildDifference]) -> list[str]:
    """The differences of a rebuild."""
    if not changes:
        return ["the rebuild is the same in versions, machine, settings and hashes"]
    return [f"{change.what}: {change.before}, now {change.after}" for change in changes]
