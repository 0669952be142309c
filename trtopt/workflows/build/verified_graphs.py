"""What a build folder holds, checked against its manifest."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trtopt.errors import ArtifactError
from trtopt.files.bounded_reading import sha256_of
from trtopt.onnxio.model_info import read_onnx
from trtopt.records import EngineArtifact, Manifest, OnnxArtifact


def as_it_is(folder: Path, engine: EngineArtifact) -> EngineArtifact:
    """The engine with the hash and size that its file has now, because the user trusts it by name."""
    file = folder / engine.path
    if not file.is_file():
        raise ArtifactError(
            f"{file}: is not there", "bring it back, or build the folder again: `trtopt build --locked`"
        )
    return msgspec.structs.replace(
        engine,
        sha256=sha256_of(file),
        size_bytes=file.stat().st_size,
        notes=(*engine.notes, "not as it was built: trusted by name"),
    )


def verified_graphs(folder: Path, manifest: Manifest) -> list[OnnxArtifact]:
    """The graphs that a folder's engines are made of, where they lie."""
    found = [read_onnx(folder / Path(graph.path).name) for graph in (manifest.onnx, *manifest.graphs)]
    for there, graph in zip(found, (manifest.onnx, *manifest.graphs), strict=True):
        if there.sha256 != graph.sha256:
            raise ArtifactError(
                f"{there.path}: is not the model that the engines were built from", "build again"
            )
    return found
