"""The origin of the figures: machines, files, builds and commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from trtopt.records import Collected, Environment, Manifest
from trtopt.report.html.blocks import Block, Cell, Column, Command, Lines, Missing, Panel, Section, Table

_ENGINES = (
    Column("engine"),
    Column("shapes"),
    Column("MiB", "number", 2),
    Column("build s", "number", 1),
    Column("warnings", "number"),
    Column("SHA-256"),
)
_FACTS = (Column("what"), Column("found"))


def environment_section(collected: Collected, command: str) -> Section:
    """Each file's machine, grouped by machine; then the build and the folder's contents."""
    blocks: list[Block] = []
    for environment, files in _machines(collected):
        blocks.append(Table(f"Where {', '.join(files)} was made", _FACTS, _facts(environment)))
    blocks += _build(collected.manifest) if collected.manifest is not None else [_no_manifest(command)]
    notes = [f"{file}: {note}" for file, report in collected.reports.items() for note in report.notes]
    omitted = [f"not on this page: {file}, {reason}" for file, reason in collected.left_out.items()]
    blocks.append(Lines([*collected.notes, *notes, *omitted]))
    return Section("environment", "Environment", [Panel("", blocks)])


def _no_manifest(command: str) -> Missing:
    return Missing("The build of the engines is unknown: there is no manifest.json.", command)


def _machines(collected: Collected) -> list[tuple[Environment, list[str]]]:
    machines: list[tuple[Environment, list[str]]] = []
    for file, report in collected.reports.items():
        if report.environment is None:
            continue
        is_trtopt = next(
            (files for environment, files in machines if environment == report.environment), None
        )
        if is_trtopt is None:
            machines.append((report.environment, [file]))
        else:
            is_trtopt.append(file)
    return machines


def _facts(environment: Environment) -> list[list[Cell]]:
    device = environment.device
    memory = f"{device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes else None
    facts = {
        "device": device.name,
        "compute capability": device.compute_capability,
        "device memory": memory,
        "driver": device.driver,
        "CUDA": device.cuda,
        "CUDA binding": device.binding,
        "device's UUID": device.uuid,
        "backend": str(environment.backend),
        "trtopt": environment.trtopt + (f", {environment.git_revision}" if environment.git_revision else ""),
        "Python": environment.python,
        "platform": environment.platform,
        "CPU": environment.cpu,
        "cores allowed": ", ".join(map(str, environment.cpus)),
    }
    return [[what, tooltip_fields] for what, tooltip_fields in facts.items() if tooltip_fields]


def _build(manifest: Manifest) -> Iterator[Block]:
    rows: list[list[Cell]] = [
        [
            engine.path,
            engine.plan.label,
            engine.size_bytes / 2**20,
            engine.build_seconds,
            engine.warnings,
            engine.sha256,
        ]
        for engine in manifest.engines
    ]
    first = manifest.engines[0]
    yield Table(f"Engines, built by {first.plan.backend} on {first.device.name}", _ENGINES, rows)
    yield Table("Builder settings", _FACTS, [[*pair] for pair in first.builder_config.items()])
    lines = [f"model {manifest.onnx.path}, SHA-256 {manifest.onnx.sha256}"]
    rewrite = manifest.rewrite
    if rewrite is not None:
        applied = ", ".join(f"{rule} {count}" for rule, count in rewrite.applied.items()) or "no rule applied"
        lines.append(f"rewritten: {rewrite.nodes_before} → {rewrite.nodes_after} nodes ({applied})")
    yield Lines([*lines, *manifest.notes])


def commands_section(collected: Collected) -> Section:
    """The commands as they were typed, in the usual order of work."""
    blocks: list[Block] = []
    if collected.manifest is not None and collected.manifest.argv:
        blocks.append(Command(typed(collected.manifest.argv), f"the engines, {collected.manifest.created}"))
    for file, report in collected.reports.items():
        if report.argv:
            blocks.append(Command(typed(report.argv), f"{file}, {report.created}"))
    return Section("commands", "Commands", [Panel("", blocks)])


def typed(argv: Sequence[str]) -> str:
    """A command line for a shell, however the program was started."""
    program, *rest = argv
    is_trtopt = PurePath(program).name in ("trtopt", "__main__.py")
    return shlex.join(["trtopt" if is_trtopt else program, *rest])
