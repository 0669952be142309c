"""The user's model in the build folder, rewritten if requested."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trtopt.errors import (
    InvalidModelError,
)
from trtopt.files.atomic import cannot_write
from trtopt.files.manifests import MANIFEST
from trtopt.files.signing import SIGNATURE
from trtopt.onnxio.external_data import external_files
from trtopt.onnxio.model_info import load_graph
from trtopt.records import (
    Backend,
    OnnxArtifact,
    RewriteSummary,
)
from trtopt.workflows.build.engines import (
    MODEL_FILE,
    TIMING_CACHE_FILE,
)
from trtopt.workflows.build.rewriting import rewritten
from trtopt.workflows.listener import Listener

_OWN_NAMES = {MODEL_FILE, TIMING_CACHE_FILE, MANIFEST, SIGNATURE}


@dataclass(frozen=True)
class Kept:
    """The user's model in the build folder, and its rewrite."""

    onnx: OnnxArtifact
    rewrite: RewriteSummary | None
    notes: tuple[str, ...]


def keep_model(
    onnx: OnnxArtifact, source: Path, folder: Path, backend: Backend, listener: Listener, *, rewrite: bool
) -> Kept:
    """The user's model in a folder, rewritten if requested and possible."""
    kept, summary, notes = None, None, []
    if rewrite:
        listener.phase(source.name, "rewriting the graph")
        kept, summary, note = rewritten(onnx, source, folder / MODEL_FILE, backend)
        notes.append(note)
    return Kept(kept or _copied(onnx, source, folder), summary, tuple(notes))


def _copied(onnx: OnnxArtifact, source: Path, folder: Path) -> OnnxArtifact:
    """Copy the model, and its external data under the names that the model knows, into the build folder.

    Raises:
        InvalidModelError: its data is in a file that is called like one of the build's own.
        OutputError: it cannot be copied.
    """
    files = external_files(load_graph(source), source)
    for name in {str(file.relative_to(source.parent)) for file in files} & _OWN_NAMES:
        raise InvalidModelError(
            f"{source}: keeps weights in {name!r}, a name that the build folder needs itself",
            "save the model again with another name for its weights",
        )
    try:
        for file in files:
            copy = folder / file.relative_to(source.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        shutil.copyfile(source, folder / MODEL_FILE)
    except OSError as error:
        raise cannot_write(folder, error) from None
    return msgspec.structs.replace(onnx, path=str(folder / MODEL_FILE))
