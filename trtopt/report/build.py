"""Builds: the engines of a folder, what became of its files, and timing caches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import methodcaller

from trtopt.printable import counted
from trtopt.records import CacheEntry, EngineArtifact, FolderCheck, Manifest
from trtopt.records.base import Row
from trtopt.report.bench import backend_text
from trtopt.report.view import (
    Block,
    Column,
    Lines,
    Table,
    View,
    each_text,
    facts_of,
    facts_table,
    mib,
    plain,
    table,
    view_of,
)


@view_of.register
def build_view(manifest: Manifest, folder: str = "") -> View:
    """One row per engine, and one line that names the logs with builder warnings."""
    backend, count = manifest.engines[0].plan.backend, counted(len(manifest.engines), "engine")
    logs = [f"{engine.log} ({engine.warnings})" for engine in manifest.engines if engine.warnings]
    warnings = [f"warnings from the builder are in {', '.join(logs)}"] if logs else []
    return View(
        f"{folder or manifest.onnx.path}: {count} by {backend_text(backend)}",
        [engines_table(manifest.engines), Lines(warnings), *_origin(manifest)],
        plain(manifest.notes),
        f"{count} by {backend.name}: batch {', '.join(map(_batches, manifest.engines))}",
        map(_figures, manifest.engines),
    )


def _figures(engine: EngineArtifact) -> Row:
    return {
        "engine": engine.path,
        "batch": _batches(engine, with_best=False),
        "size_bytes": engine.size_bytes,
        "build_seconds": engine.build_seconds,
        "sha256": engine.sha256,
    }


def engines_table(engines: Iterable[EngineArtifact]) -> Table:
    """A row for each engine."""
    columns: list[Column[EngineArtifact]] = [
        Column("engine", lambda one: one.path),
        Column("batch", _batches, ""),
        Column("size MiB", lambda one: mib(one.size_bytes), ".2f"),
        Column("build s", lambda one: one.build_seconds, ".1f"),
        Column("timing cache", _cache_use, ""),
        Column("warnings", lambda one: one.warnings, "", face="page"),
        Column("SHA-256", lambda one: one.sha256, face="page"),
    ]
    return table("", columns, engines)


def _origin(manifest: Manifest) -> Iterator[Block]:
    """What the engines were built from and how, for the page."""
    if manifest.io:
        tensors = [facts_of(one) for one in manifest.io]
        names = dict.fromkeys(name for one in tensors for name in one)
        columns: list[Column[dict[str, str]]] = [Column(name, methodcaller("get", name)) for name in names]
        yield table("Typed inputs and outputs", columns, tensors, face="page")
    yield facts_table("Builder settings", manifest.engines[0].builder_config)
    lines = [f"model {manifest.onnx.path}, SHA-256 {manifest.onnx.sha256}"]
    if (rewrite := manifest.rewrite) is not None:
        applied = each_text(rewrite.applied) or "no rule applied"
        lines.append(f"rewritten: {rewrite.nodes_before} → {rewrite.nodes_after} nodes ({applied})")
        if rewrite.inputs_checked and rewrite.largest_error is not None:
            lines.append(
                f"the rewritten graph is verified on {rewrite.inputs_checked} inputs: largest error "
                f"{rewrite.largest_error:.2g} of the output's magnitude"
            )
    yield Lines(lines, face="page")


def _batches(engine: EngineArtifact, *, with_best: bool = True) -> str:
    spans = [(span.min[0], span.opt[0], span.max[0]) for span in (one.batch for one in engine.plan.profiles)]
    return "; ".join(
        f"{low}" if low == high else f"{low} to {high}" + f", tuned for {best}" * with_best
        for low, best, high in spans
    )


def _cache_use(engine: EngineArtifact) -> str:
    if engine.timing_cache_out is None:
        return "none"
    if engine.timing_cache_in is None:
        return "new"
    return "read" if engine.timing_cache_hits is None else f"{engine.timing_cache_hits} hits"


# ── later looks at a folder ─────────────────────────────────────────────────────────────────────────────


_STATES = {"missing": "missing", "changed": "changed", "extra": "not of this build"}
"""What a file may be, by the field that names those files."""


@view_of.register
def folder_view(check: FolderCheck, folder: str = "the folder") -> View:
    """A summary, and a line and a row for every file that changed since the build."""
    rows: list[Row] = [{"file": name, "state": state} for state in _STATES for name in getattr(check, state)]
    bad = len(check.missing) + len(check.changed)
    whole = f"{check.checked - bad} of {check.checked}" if bad else f"all {check.checked}"
    lines = (f"{_STATES[str(row['state'])]}: {row['file']}" for row in rows)
    found = [f"{folder}: {whole} files are unchanged since the build", *lines]
    return View("", [Lines(found, is_copied=True)], rows=rows)


# ── timing caches ───────────────────────────────────────────────────────────────────────────────────────


def caches_view(entries: Sequence[CacheEntry], folder: str) -> View:
    """One row per cache; the problems of unusable caches follow below."""
    if not entries:
        return View("", [Lines([f"{folder}: no timing caches yet"])])
    columns: list[Column[CacheEntry]] = [
        Column("name", lambda one: one.name, fit="fold"),
        Column("MiB", lambda one: mib(one.size_bytes), ".1f"),
        Column("driver", lambda one: (one.identity.driver if one.identity else None) or "?", ""),
        Column("last used", lambda one: one.used, "", fit="fold"),
    ]
    problems = [f"{entry.name}: {entry.problem}" for entry in entries if entry.problem]
    title = f"{folder}: {counted(len(entries), 'timing cache')}"
    return View(title, [table("", columns, entries), Lines(problems)])
