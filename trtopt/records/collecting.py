"""The record of a folder that is to be reported on."""

from __future__ import annotations

from trtopt.records.base import Record
from trtopt.records.building import Manifest
from trtopt.records.inspecting import ProfileReport
from trtopt.records.measuring import BenchReport


class Collected(Record, frozen=True, kw_only=True):
    """What a folder holds of one model's builds, measurements and profiles, by file name.

    `folder` is written as the user did, `name` is its own name. `left_out` says of every other JSON file why
    it is not reported on.
    """

    folder: str
    name: str
    manifest: Manifest | None = None
    results: dict[str, BenchReport] = {}  # noqa: RUF012  (msgspec copies mutable defaults)
    profiles: dict[str, ProfileReport] = {}  # noqa: RUF012
    left_out: dict[str, str] = {}  # noqa: RUF012
    notes: tuple[str, ...] = ()

    @property
    def reports(self) -> dict[str, BenchReport | ProfileReport]:
        """Results, then profiles, by file name."""
        return {**self.results, **self.profiles}
