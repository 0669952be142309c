"""Whether files belong together: hashes tell, never names."""

from __future__ import annotations

from pathlib import Path

from trtopt.errors import ArtifactError
from trtopt.records import BenchReport, EngineRef, Manifest, ProfileReport


def engines_of(report: BenchReport | ProfileReport) -> list[tuple[int, EngineRef]]:
    """Every batch size with the engine that was measured or looked into."""
    if isinstance(report, BenchReport):
        return [(point.batch, point.latency.engine) for point in report.points]
    return [(engine.batch, engine.engine) for engine in report.engines]


def check_model(found: str, expected: str, where: Path, model: str, remedy: str) -> None:
    """Both hashes must be of one model."""
    if found != expected:
        raise ArtifactError(f"{where}: is of another model than {model} (hashes differ)", remedy)


def check_engines(
    report: BenchReport | ProfileReport, manifest: Manifest, where: Path, folder: Path, remedy: str
) -> None:
    """Engines must be the folder's, unless the model ran on another backend than they are for."""
    environment = report.environment
    if environment is not None and environment.backend.name != manifest.engines[0].plan.backend.name:
        return
    known = {engine.sha256 for engine in manifest.engines}
    for batch, engine in engines_of(report):
        if engine.sha256 not in known:
            raise ArtifactError(
                f"{where}: batch {batch} is of another engine than {folder} holds (hashes differ)", remedy
            )
