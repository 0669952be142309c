"""Records of folders that were looked over, and of builds that were made again."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record


class FolderCheck(Record, frozen=True, kw_only=True):
    """What became of a build folder's files since they were built, each by its path in the folder.

    `extra` were not there then. `signature`: `unchecked` where no signer was named.
    """

    missing: tuple[str, ...]
    changed: tuple[str, ...]
    extra: tuple[str, ...]
    checked: int
    signature: Literal["valid", "unchecked", "none"]

    @property
    def is_whole(self) -> bool:
        """Whether every file is there as it was built."""
        return not self.missing and not self.changed


class Change(Record, frozen=True, kw_only=True):
    """Something that differs between a build and its rebuild; `what` tells where."""

    what: str
    before: str
    after: str
