"""Names that hang together."""

from __future__ import annotations

from collections.abc import Iterable


class DisjointNames:
    """Disjoint sets of names (union-find, with path halving); every name begins as a set of its own."""

    def __init__(self, names: Iterable[str]) -> None:
        self._parent = {name: name for name in names}

    def root(self, name: str) -> str:
        """The name that stands for the set of `name`."""
        while self._parent[name] != name:
            self._parent[name] = self._parent[self._parent[name]]
            name = self._parent[name]
        return name

    def join(self, *names: str) -> None:
        """Make one set of the sets of all these."""
        for other in names[1:]:
            self._parent[self.root(other)] = self.root(names[0])
