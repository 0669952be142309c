"""The origin of the figures: machines, files, builds and commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from trtopt.records import Collected, Environment, Manifest
from trtopt.records.tensors import TypedTensor
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
_TENSORS = (
    Column("tensor"),
    Column("role"),
    Column("type"),
    Column("layout"),
    Column("type in the model"),
    Column("scale", "number", 6),
    Column("mean and deviation in the graph"),
)


def machines_section(collected: Collected) -> Section | None:
    """Each file's machine, grouped by machine; None where no file names one."""
    tables = [
        Table(f"Where {', '.join(files)} was made", _FACTS, machine_facts(environment))
        for environment, files in _machines(collected)
    ]
    return Section("machines", "Machine and versions", [Panel("", tables)]) if tables else None


def build_section(collected: Collected, command: str) -> Section | Missing:
    """The engines of the folder, their builder's settings and the graph."""
    if collected.manifest is None:
        return Missing("build", command)
    return Section("build", "Build", [Panel("", list(_build(collected.manifest)))])


def file_notes(collected: Collected) -> list[str]:
    """What the files themselves note, each once, and what of the folder is not on the page."""
    notes: dict[str, list[str]] = {}
    for file, report in collected.reports.items():
        for note in report.notes:
            notes.setdefault(note, []).append(file)
    omitted = [f"not on this page: {file}, {reason}" for file, reason in collected.left_out.items()]
    return [*(f"{', '.join(files)}: {note}" for note, files in notes.items()), *omitted]


def _machines(collected: Collected) -> list[tuple[Environment, list[str]]]:
    machines: list[tuple[Environment, list[str]]] = []
    for file, report in collected.reports.items():
        if report.environment is None:
            continue
        same = next((files for environment, files in machines if environment == report.environment), None)
        if same is None:
            machines.append((report.environment, [file]))
        else:
            same.append(file)
    return machines


def machine_facts(environment: Environment) -> list[list[Cell]]:
    """What is known of a machine and its versions, as rows of name and value."""
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
    return [[what, fact] for what, fact in facts.items() if fact]


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
    if manifest.io:
        yield Table("Typed inputs and outputs", _TENSORS, [_tensor(one) for one in manifest.io])
    yield Table("Builder settings", _FACTS, [[*pair] for pair in first.builder_config.items()])
    lines = [f"model {manifest.onnx.path}, SHA-256 {manifest.onnx.sha256}"]
    rewrite = manifest.rewrite
    if rewrite is not None:
        applied = ", ".join(f"{rule} {count}" for rule, count in rewrite.applied.items()) or "no rule applied"
        lines.append(f"rewritten: {rewrite.nodes_before} → {rewrite.nodes_after} nodes ({applied})")
    yield Lines([*lines, *manifest.notes])


def _tensor(one: TypedTensor) -> list[Cell]:
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (one.mean, one.std))
    normalised = f"({mean}), ({std})" if one.mean else ""
    return [one.name, one.role, one.dtype, one.layout, one.model_dtype, one.scale, normalised]


def commands_of(collected: Collected) -> list[Command]:
    """The commands as they were typed, in the usual order of work."""
    manifest = collected.manifest
    made = [("engines", manifest.argv, manifest.created)] if manifest is not None else []
    made += [(file, report.argv, report.created) for file, report in collected.reports.items()]
    made += [(file, check.argv, check.created) for file, check in collected.checks.items()]
    return [Command(typed(argv), f"{what}, {date_text(created)}") for what, argv, created in made if argv]


def date_text(created: str) -> str:
    """A record's time of day to the minute: `2026-01-31 12:00 UTC`."""
    return f"{created[:10]} {created[11:16]} UTC"


def typed(argv: Sequence[str]) -> str:
    """A command line for a shell, however the program was started."""
    program, *rest = argv
    is_trtopt = PurePath(program).name in ("trtopt", "__main__.py")
    return shlex.join(["trtopt" if is_trtopt else program, *rest])
