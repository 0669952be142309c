"""Whether the plugin libraries that engines need may be loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from trtopt.errors import ArtifactError
from trtopt.records import EngineArtifact


def plugin_libraries(engines: Iterable[EngineArtifact]) -> set[str]:
    """The paths of the libraries that engines need, as their manifest names them."""
    return {plugin.path for engine in engines for plugin in engine.plan.settings.plugins}


def is_library(name: str, library: str) -> bool:
    """Whether the user means that library: by its path or by a link to it."""
    return os.path.abspath(library) in (os.path.abspath(name), os.path.realpath(name))


def check_plugins(engines: Iterable[EngineArtifact], trust: Sequence[str], flag: str = "--trust") -> None:
    """Check that the user names engines' plugin libraries too: anyone can write a manifest that names any."""
    for library in sorted(plugin_libraries(engines)):
        if not any(is_library(name, library) for name in trust):
            raise ArtifactError(
                f"{library}: a plugin library that the engines need; it is native code and was not loaded",
                f"if you trust it, name it: {flag} {library}",
            )
