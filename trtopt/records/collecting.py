"""The record of a folder for a report."""

from __future__ import annotations

from trtopt.records.base import Record
from trtopt.records.building import Manifest
from trtopt.records.checking import CheckReport
from trtopt.records.inspecting import ProfileReport
from trtopt.records.measuring import BenchReport


class Collected(Record, frozen=True, kw_only=True):
    """The builds, measurements, profiles and checks of one model in a folder, by file name.

    `folder` is the path as the user wrote it, `name` its last part. `left_out` has the reason for every other
    JSON file that is not in the report.
    """

    folder: str
    name: str
    manifest: Manifest | None = None
    results: dict[str, BenchReport] = {}  # noqa: RUF012  (msgspec copies mutable defaults)
    profiles: dict[str, ProfileReport] = {}  # noqa: RUF012
    checks: dict[str, CheckReport] = {}  # noqa: RUF012
    left_out: dict[str, str] = {}  # noqa: RUF012
    notes: tuple[str, ...] = ()

    @property
    def reports(self) -> dict[str, BenchReport | ProfileReport]:
        """Results, then profiles, by file name."""
        return {**self.results, **self.profiles}
