"""Where figures come from: machines, files, builds, and the commands that made them."""

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


def environment_section(found: Collected, command: str) -> Section:
    """Each file's machine, those of one machine together; then the build and what is in the folder."""
    blocks: list[Block] = []
    for environment, files in _machines(found):
        blocks.append(Table(f"Where {', '.join(files)} was made", _FACTS, _facts(environment)))
    blocks += _build(found.manifest) if found.manifest is not None else [_no_manifest(command)]
    notes = [f"{file}: {note}" for file, report in found.reports.items() for note in report.notes]
    left = [f"not on this page: {file}, {reason}" for file, reason in found.left_out.items()]
    blocks.append(Lines([*found.notes, *notes, *left]))
    return Section("environment", "Environment", [Panel("", blocks)])


def _no_manifest(command: str) -> Missing:
    return Missing("How the engines were built is not known: there is no manifest.json.", command)


def _machines(found: Collected) -> list[tuple[Environment, list[str]]]:
    machines: list[tuple[Environment, list[str]]] = []
    for file, report in found.reports.items():
        if report.environment is None:
            continue
        known = next((files for environment, files in machines if environment == report.environment), None)
        if known is None:
            machines.append((report.environment, [file]))
        else:
            known.append(file)
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
    yield Table("How the builder was set", _FACTS, [[*pair] for pair in first.builder_config.items()])
    lines = [f"model {manifest.onnx.path}, SHA-256 {manifest.onnx.sha256}"]
    rewrite = manifest.rewrite
    if rewrite is not None:
        applied = ", ".join(f"{rule} {count}" for rule, count in rewrite.applied.items()) or "no rule applied"
        lines.append(f"rewritten: {rewrite.nodes_before} → {rewrite.nodes_after} nodes ({applied})")
    yield Lines([*lines, *manifest.notes])


def commands_section(found: Collected) -> Section:
    """The commands as they were typed, in the order of a working day."""
    blocks: list[Block] = []
    if found.manifest is not None and found.manifest.argv:
        blocks.append(Command(typed(found.manifest.argv), f"the engines, {found.manifest.created}"))
    for file, report in found.reports.items():
        if report.argv:
            blocks.append(Command(typed(report.argv), f"{file}, {report.created}"))
    blocks.append(Command(f"trtopt report {shlex.quote(found.folder)} -o report.html", "this page"))
    return Section("commands", "Commands", [Panel("", blocks)])


def typed(argv: Sequence[str]) -> str:
    """A command line for a shell, whichever way the program was started."""
    program, *rest = argv
    known = PurePath(program).name in ("trtopt", "__main__.py")
    return shlex.join(["trtopt" if known else program, *rest])
