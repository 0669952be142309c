"""Records of verified folders and of rebuilds."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record


class FolderCheck(Record, frozen=True, kw_only=True):
    """Changes to a build folder's files since the build, by path in the folder.

    `extra` files were added since. `signature`: `unchecked` where no signer was named.
    """

    missing: tuple[str, ...]
    changed: tuple[str, ...]
    extra: tuple[str, ...]
    checked: int
    signature: Literal["valid", "unchecked", "none"]

    @property
    def is_whole(self) -> bool:
        """Whether every file is present and unchanged."""
        return not self.missing and not self.changed


class Change(Record, frozen=True, kw_only=True):
    """A difference between a build and its rebuild; `what` names the place."""

    what: str
    before: str
    after: str
