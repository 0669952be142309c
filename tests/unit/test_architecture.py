"""The house rules of docs/architecture.md: which room may import which, and how long things may get."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "trtopt"
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60

FREE = {"errors", "records", "logs", "version"}
"""What everything may import."""


def table_of(page: str) -> dict[str, set[str]]:
    """The table of rooms: room → what it may import, itself and the others of its row included."""
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| `")]
    rooms = [re.findall(r"`(\w+)(?:\.py|/)`", where) for where, _, _ in rows]
    known = {room for row in rooms for room in row}
    table: dict[str, set[str]] = {}
    for row, (_, _, cell) in zip(rooms, rows, strict=True):
        words = set(re.split(r", | and ", cell.strip().removeprefix("everything but ")))
        named = {word for word in words if word.split(".")[0] in known}
        assert words - named <= {"–"}, f"{cell.strip()!r} names no room"
        allowed = known - named if cell.strip().startswith("everything but ") else named
        table |= {room: allowed | set(row) | FREE for room in row}
    return table


MAY_IMPORT = table_of((ROOT / "docs" / "architecture.md").read_text("utf-8"))
STAGES = {"export", "rewrite", "precision", "builder", "measure", "inspect", "plan", "runtime", "report"}
PURE = {
    "measure.statistics",
    "measure.comparison",
    "measure.queueing",
    "measure.outcomes",
    "measure.ledger",
    "measure.findings",
    "plan.choices",
    "measure.arrivals",
    "measure.intervals",
    "runtime.batching",
    "runtime.choosing",
}
"""Judgements that other stages may use."""
ENTRANCES = {"__init__", "__main__"}
VENDORS = {"tensorrt", "tensorrt_rtx", "cuda", "pycuda", "pynvml", "onnxruntime"}


@dataclass(frozen=True)
class Import:
    """One imported module, in full; `late` where it is inside a function."""

    module: str
    line: int
    late: bool = False


def imports_of(source: str, module: str, *, is_package: bool = False) -> list[Import]:
    """Everything that a module's source imports, wherever in it; `from a import b` counts as `a.b`."""
    home = module.split(".") if is_package else module.split(".")[:-1]
    return list(_imports_below(ast.parse(source), home, late=False))


def _imports_below(node: ast.AST, home: list[str], *, late: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            up = home[: len(home) - child.level + 1] if child.level else []
            base = ".".join([*up, *filter(None, [child.module])])
            yield from (Import(f"{base}.{alias.name}", child.lineno, late) for alias in child.names)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports_below(child, home, late=late or inside)


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def device_memory_of(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def is_allowed(module: str, allowed: set[str]) -> bool:
    """Whether an imported `trtopt.…` lies in one of the allowed rooms or modules."""
    inner = module.removeprefix("trtopt.")
    return any(inner == room or inner.startswith(f"{room}.") for room in allowed)


FILES = sorted(PACKAGE.rglob("*.py"))
IMPORTS = {
    file: imports_of(file.read_text("utf-8"), module_name(file), is_package=file.name == "__init__.py")
    for file in FILES
}


def shown(file: Path, line: int) -> str:
    return f"{file.relative_to(ROOT)}:{line}"


# ── the checker itself ──────────────────────────────────────────────────────────────────────────────────


def test_imports_are_found_wherever_they_are_and_however_they_are_written() -> None:
    source = """
import os, trtopt.errors
from trtopt import records as r
from . import lane
from .lane import Lane
from ..device import api
if TYPE_CHECKING:
    from trtopt.cli import main
def f():
    class Inner:
        import tensorrt.plugin
"""
    assert imports_of(source, "trtopt.measure.loop.run_pass") == [
        Import("os", 2),
        Import("trtopt.errors", 2),
        Import("trtopt.records", 3),
        Import("trtopt.measure.loop.inference_stream", 4),
        Import("trtopt.measure.loop.inference_stream.Lane", 5),
        Import("trtopt.device.api", 6),
        Import("trtopt.cli.main", 8),
        Import("tensorrt.plugin", 11, late=True),
    ]
    inside = imports_of("from . import loop", "trtopt.measure", is_package=True)
    assert inside == [Import("trtopt.measure.loop.run_pass", 1)]


def test_an_import_is_allowed_by_its_room_and_not_by_the_beginning_of_its_name() -> None:
    assert is_allowed("trtopt.device.api.Device", {"device.api"})
    assert is_allowed("trtopt.records.Shape", {"records"})
    assert not is_allowed("tests.support.scripted_device.device", {"device.api"})
    assert not is_allowed("trtopt.device.apish", {"device.api"})
    assert not is_allowed("trtopt.recordsish.Shape", {"records"})


def test_the_table_of_rooms_is_read_as_it_is_written() -> None:
    page = """
| where | owns | may import |
|---|---|---|
| `records.py` | the records | – |
| `device/` | devices | records |
| `jobs.py`, `worker.py` | processes | device.api, records |
| `cli/` | commands | everything but device and worker |
"""
    assert table_of(page) == {
        "records": FREE,
        "device": FREE | {"device"},
        "jobs": FREE | {"jobs", "worker", "device.api"},
        "worker": FREE | {"jobs", "worker", "device.api"},
        "cli": FREE | {"cli", "jobs"},
    }
    with pytest.raises(AssertionError, match="names no room"):
        table_of(page.replace("| records |", "| recrods |"))


def test_the_package_is_looked_at_whole() -> None:
    assert {"errors", "builder", "measure", "device", "pipeline", "cli"} <= {
        device_memory_of(file) for file in FILES
    }
    assert sum(map(len, IMPORTS.values())) > 200


# ── rooms ───────────────────────────────────────────────────────────────────────────────────────────────


def test_every_module_is_in_a_room() -> None:
    assert {device_memory_of(file) for file in FILES} - ENTRANCES - {"version"} == MAY_IMPORT.keys()


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_what_it_may(room: str) -> None:
    allowed = MAY_IMPORT[room]
    forbidden = [
        f"{shown(file, found.line)} imports {found.module}"
        for file, imports in IMPORTS.items()
        if device_memory_of(file) == room
        for found in imports
        if found.module.split(".")[0] == "trtopt" and not is_allowed(found.module, allowed)
    ]
    assert forbidden == []


def test_stages_never_import_one_another() -> None:
    crossings = {
        (device_memory_of(file), found.module.split(".")[1], found.module)
        for file, imports in IMPORTS.items()
        if device_memory_of(file) in STAGES
        for found in imports
        if found.module.split(".")[0] == "trtopt"
        and found.module.split(".")[1] in STAGES - {device_memory_of(file)}
    }
    assert {
        crossing
        for crossing in crossings
        if crossing[0] not in ("plan", "report") or not is_allowed(crossing[2], PURE)
    } == set()


def test_the_entrance_loads_nothing_but_the_version_before_it_is_asked() -> None:
    source = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    early = [node for node in source.body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in early}
    assert modules == {"__future__", "typing", "trtopt.version"}


# ── vendors' libraries ──────────────────────────────────────────────────────────────────────────────────


def test_only_devices_import_the_vendors_libraries() -> None:
    outside = [
        f"{shown(file, found.line)} imports {found.module}"
        for file, imports in IMPORTS.items()
        if device_memory_of(file) != "device"
        for found in imports
        if found.module.split(".")[0] in VENDORS
    ]
    assert outside == []


def test_the_vendors_libraries_are_imported_late() -> None:
    """A device module for one library must load where another is installed; `cuda/` is itself loaded late."""
    early = [
        f"{shown(file, found.line)} imports {found.module}"
        for file, imports in IMPORTS.items()
        if file.parent != PACKAGE / "device" / "cuda"
        for found in imports
        if found.module.split(".")[0] in VENDORS and not found.late
    ]
    assert early == []


def test_modules_are_imported_by_a_computed_name_only_where_that_is_the_point() -> None:
    computed = {
        str(file.relative_to(PACKAGE))
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute | ast.Name)
        and (node.attr if isinstance(node, ast.Attribute) else node.id) in ("import_module", "__import__")
    }
    outside = {name for name in computed if not name.startswith("device/")}
    assert outside == {"__init__.py", "cli/main.py", "usercode.py"}


def test_consoles_are_made_in_one_place() -> None:
    """rich takes brackets and colons in names for markup and emoji, unless a console is told not to."""
    makers = {str(file.relative_to(PACKAGE)) for file in FILES if "Console(" in file.read_text("utf-8")}
    assert makers == {"cli/console.py"}


# ── sizes ───────────────────────────────────────────────────────────────────────────────────────────────

SOURCES = [*FILES, *sorted((ROOT / "tests").rglob("*.py"))]


def functions_of(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text("utf-8").splitlines()) for file in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    lengths = {
        f"{shown(file, function.lineno)} {function.name}": function.end_lineno - function.lineno + 1
        for file in SOURCES
        for function in functions_of(file)
        if function.end_lineno is not None
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}
