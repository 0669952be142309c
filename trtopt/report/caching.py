"""Timing caches as text tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from trtopt.records import CacheDifference, CacheEntry, Tactic, TimedBuild
from trtopt.report.tables import plain_table, titled

_MIB = 2**20


def entries_table(entries: Sequence[CacheEntry], folder: str) -> RenderableType:
    """One row per cache; the problems of unusable caches follow below."""
    if not entries:
        return Text(f"{folder}: no timing caches yet")
    table = plain_table()
    for name in ("name", "MiB", "builds", "driver", "last used"):
        table.add_column(name, justify="left" if name == "name" else "right", overflow="fold")
    for entry in entries:
        driver = entry.identity.driver if entry.identity else None
        table.add_row(
            Text(entry.name),
            f"{entry.size_bytes / _MIB:.1f}",
            str(entry.build_count),
            driver or "?",
            entry.used,
        )
    caches = titled(f"{folder}: {len(entries)} timing cache{'s' if len(entries) > 1 else ''}", table)
    return Group(caches, *(Text(f"{entry.name}: {entry.problem}") for entry in entries if entry.problem))


def entry_summary(entry: CacheEntry) -> RenderableType:
    """Machine and settings of the cache, and its builds, the latest last."""
    lines = [entry.name, f"  file: {entry.path} ({_size(entry.size_bytes)}), last used {entry.used}"]
    if entry.problem:
        lines.append(f"  cannot be used: {entry.problem}")
    if entry.identity:
        identity = entry.identity
        lines.append(f"  made by {identity.backend} on {identity.gpu} ({identity.compute_capability})")
        lines.append(f"  driver {identity.driver}, CUDA {identity.cuda}")
    if entry.terms:
        terms = entry.terms
        sources = "default" if terms.tactic_sources is None else ", ".join(terms.tactic_sources)
        lines.append(
            f"  optimisation level {_or_default(terms.opt_level)}, "
            f"bytes of workspace: {_or_default(terms.workspace_bytes)}, "
            f"tactic sources: {sources}, {len(terms.plugins)} plugins"
        )
    lines.append(f"  {entry.build_count} builds; the latest {len(entry.builds)}:")
    return Group(*map(Text, [*lines, *(f"    {_build(build)}" for build in entry.builds)]))


def tactics_table(tactics: Sequence[Tactic]) -> RenderableType:
    """One row per entry."""
    table = plain_table()
    for name in ("ms", "tactic", "key"):
        table.add_column(name, justify="right" if name == "ms" else "left", overflow="fold")
    for one in tactics:
        table.add_row(f"{one.ms:.4f}", one.tactic, Text(one.key))
    return titled(f"{len(tactics)} tactics", table)


def difference_table(difference: CacheDifference) -> RenderableType:
    """Entries that only one of two caches has, and entries where another tactic won."""
    title = (
        f"{difference.same} the same, {len(difference.changed)} won by another tactic, "
        f"{len(difference.only_first)} only in the first, {len(difference.only_second)} only in the second"
    )
    table = plain_table()
    for name in ("first", "second", "key"):
        table.add_column(name, overflow="fold")
    for one, other in difference.changed:
        table.add_row(_won(one), _won(other), Text(one.key))
    for one in difference.only_first:
        table.add_row(_won(one), "–", Text(one.key))
    for one in difference.only_second:
        table.add_row("–", _won(one), Text(one.key))
    return titled(title, table)


def _won(tactic: Tactic) -> str:
    return f"{tactic.tactic} {tactic.ms:.4f} ms"


def _build(build: TimedBuild) -> str:
    clocks = build.clocks
    summary = f"{build.at} {build.host}: {build.engine} of {build.onnx_sha256[:12]} in {build.seconds:.1f} s"
    if clocks is None or clocks.problem:
        return f"{summary}; clocks unknown"
    mhz = "idle" if clocks.sm_mhz_low is None else f"{clocks.sm_mhz_low}–{clocks.sm_mhz_high} MHz"
    others = "?" if clocks.other_processes is None else clocks.other_processes
    return f"{summary}; SM clock {mhz}, {others} other processes on the GPU"


def _size(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"


def _or_default(value: int | None) -> str:
    return "default" if value is None else str(value)
