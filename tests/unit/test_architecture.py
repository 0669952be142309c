"""The rules of docs/architecture.md: who may import whom, no cycles, vendors' libraries in one place."""

import ast
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "trtopt"
FREE = {"errors", "options", "extras", "records", "logs", "printable", "version"}
"""What everything may import."""
ENTRANCES = {"__init__", "__main__"}
STAGES = {"export", "rewrite", "precision", "builder", "measure", "inspect", "serving", "report"}
PURE = {"measure.contracts", "measure.statistics", "measure.analysis", "measure.load.arrivals"}
"""Tables and judgements that other stages may use."""
VENDORS = {"tensorrt", "tensorrt_rtx", "cuda", "pycuda", "pynvml", "onnxruntime", "cupti"}


def table_of(page: str) -> dict[str, set[str]]:
    """The table of packages: package → what it may import, itself included."""
    is_row = re.compile(r"\| `\w+(\.py|/)` \|").match
    rows = [line.strip("|").split("|") for line in page.splitlines() if is_row(line)]
    packages = [re.fullmatch(r" `(\w+)(?:\.py|/)` ", where)[1] for where, _, _ in rows]  # type: ignore[index]
    table: dict[str, set[str]] = {}
    for package, (_, _, cell) in zip(packages, rows, strict=True):
        everything_but = cell.strip().startswith("everything but ")
        named = set(re.split(r", | and ", cell.strip().removeprefix("everything but "))) - {"–"}
        unknown = {name for name in named if name.split(".")[0] not in packages}
        assert not unknown, f"{package}: {sorted(unknown)} names no package"
        table[package] = ({*packages} - named if everything_but else named) | {package} | FREE
    return table


MAY_IMPORT = table_of((ROOT / "docs" / "architecture.md").read_text("utf-8"))


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


FILES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for file in sorted(PACKAGE.rglob("*.py"))
}


@cache
def imports() -> dict[str, list[Import]]:
    """What each module imports."""
    return {
        module: imports_of(file.read_text("utf-8"), module, is_package=file.name == "__init__.py")
        for module, file in FILES.items()
    }


def package_of(module: str) -> str:
    """`measure` of `trtopt.measure.loop.stopping`; `__init__` of `trtopt` itself."""
    return [*module.split("."), "__init__"][1]


def is_below(module: str, places: set[str]) -> bool:
    """Whether `trtopt.…` lies in one of the packages or modules."""
    inner = module.removeprefix("trtopt.")
    return any(inner == place or inner.startswith(f"{place}.") for place in places)


def own_imports() -> Iterator[tuple[str, Import]]:
    """(importer, import) for every import of trtopt's own."""
    for module, every in imports().items():
        for found in every:
            if found.module.split(".")[0] == "trtopt" and found.module != "trtopt":
                yield module, found


def cycles_in(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import one another, directly or not."""
    reached = {start: _reachable(graph, start) for start in graph}
    groups = {
        frozenset({other for other in reached[start] if start in reached[other]} | {start})
        for start in graph
        if start in reached[start]
    }
    return [set(group) for group in groups]


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += graph[module]
    return found


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
    assert imports_of(source, "trtopt.measure.loop") == [
        Import("os", 2),
        Import("trtopt.errors", 2),
        Import("trtopt.records", 3),
        Import("trtopt.measure.lane", 4),
        Import("trtopt.measure.lane.Lane", 5),
        Import("trtopt.device.api", 6),
        Import("trtopt.cli.main", 8),
        Import("tensorrt.plugin", 11, late=True),
    ]
    inside = imports_of("from . import loop", "trtopt.measure", is_package=True)
    assert inside == [Import("trtopt.measure.loop", 1)]


def test_the_table_is_read_as_it_is_written() -> None:
    page = """
| package | owns | may import |
|---|---|---|
| `records/` | the records | – |
| `device/` | devices | records |
| `jobs.py` | processes | device.api, records |
| `cli/` | commands | everything but device and jobs |
"""
    assert table_of(page) == {
        "records": FREE,
        "device": FREE | {"device"},
        "jobs": FREE | {"jobs", "device.api"},
        "cli": FREE | {"cli"},
    }
    with pytest.raises(AssertionError, match="names no package"):
        table_of(page.replace("| records |", "| recrods |"))


def test_a_cycle_is_found_however_long_it_is() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}
    assert cycles_in(graph) == [{"a", "b", "c"}]


def test_places_are_distinguished_by_whole_names() -> None:
    assert is_below("trtopt.device.api.Device", {"device.api"})
    assert not is_below("trtopt.device.apish", {"device.api"})
    assert not is_below("trtopt.recordsish.Shape", {"records"})


# ── packages ────────────────────────────────────────────────────────────────────────────────────────────


def test_every_module_is_in_the_table() -> None:
    assert {package_of(module) for module in FILES} - ENTRANCES == MAY_IMPORT.keys()


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_imports_only_what_it_may(package: str) -> None:
    forbidden = [
        f"{module}:{found.line} imports {found.module}"
        for module, found in own_imports()
        if package_of(module) == package and not is_below(found.module, MAY_IMPORT[package])
    ]
    assert forbidden == []


def test_stages_import_no_other_stage_but_its_pure_judgements() -> None:
    crossings = [
        f"{module}:{found.line} imports {found.module}"
        for module, found in own_imports()
        if package_of(module) in STAGES
        and package_of(found.module) in STAGES - {package_of(module)}
        and not is_below(found.module, PURE)
    ]
    assert crossings == []


def test_no_import_cycle_imports_inside_functions_included() -> None:
    graph = {module: set[str]() for module in FILES}
    for module, found in own_imports():
        target = found.module
        while target not in FILES:
            target = target.rpartition(".")[0]
        if target not in (module, "trtopt"):
            graph[module].add(target)
    assert sum(map(len, graph.values())) > 1000  # the graph was really read
    assert cycles_in(graph) == []


def test_everything_that_ships_is_used_by_something_that_ships() -> None:
    used = {found.module for _, found in own_imports()}
    by_name = {module for module in FILES if module.startswith("trtopt.cli.")}
    unused = [
        module
        for module, file in FILES.items()
        if file.name != "__init__.py"
        and module not in by_name | {"trtopt.__main__", "trtopt.results"}
        and module not in {"trtopt.workers.worker", "trtopt.device.ort.server"}  # run in forks
        and not any(name == module or name.startswith(f"{module}.") for name in used)
    ]
    assert unused == []


def test_the_entrance_loads_nothing_but_the_version() -> None:
    source = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    early = [node for node in source.body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in early}
    assert modules == {"__future__", "sys", "types", "typing", "trtopt.version"}


# ── vendors' libraries ──────────────────────────────────────────────────────────────────────────────────


def test_only_devices_import_the_vendors_libraries() -> None:
    outside = [
        f"{module}:{found.line} imports {found.module}"
        for module, every in imports().items()
        if package_of(module) != "device"
        for found in every
        if found.module.split(".")[0] in VENDORS
    ]
    assert outside == []


def test_ray_is_imported_late_and_by_one_module() -> None:
    found = {
        (module, one.late)
        for module, every in imports().items()
        for one in every
        if one.module.split(".")[0] == "ray"
    }
    assert found == {("trtopt.executors.ray.connection", True)}


def test_the_vendors_libraries_are_imported_late() -> None:
    """A device module for one library must load where another is installed; `cuda/` is itself loaded late.

    ONNX Runtime, which is always installed, is loaded where processes are forked.
    """
    early = [
        f"{module}:{found.line} imports {found.module}"
        for module, every in imports().items()
        if not module.startswith(("trtopt.device.cuda.", "trtopt.device.ort.server"))
        for found in every
        if found.module.split(".")[0] in VENDORS and not found.late
    ]
    assert early == []


def test_modules_are_imported_by_a_computed_name_only_where_that_is_the_point() -> None:
    computed = {
        module
        for module, file in FILES.items()
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Attribute | ast.Name)
        and (node.attr if isinstance(node, ast.Attribute) else node.id) in ("import_module", "__import__")
    }
    outside = {name for name in computed if not name.startswith("trtopt.device.")}
    assert outside == {
        "trtopt.cli.command",  # the request of the one command that runs
        "trtopt.cli.outputs",  # the kind of a file, where a command writes it
        "trtopt.files.user_code",
        "trtopt.processes.fork_server",  # imports what it is asked to fork for, or executed for
    }


def test_consoles_are_made_in_one_place() -> None:
    """rich takes brackets and colons in names for markup and emoji, unless a console is told not to."""
    makers = {module for module, file in FILES.items() if "Console(" in file.read_text("utf-8")}
    assert makers == {"trtopt.cli.console"}


def test_every_place_that_the_page_names_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = [line for line in page.partition("## Where to look")[2].splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        near = [PACKAGE]  # a bare file name is in the place before it, or next to that
        for place in re.findall(r"`([\w/]+(?:\.py|/))`", row.rpartition(" | ")[2]):
            known = [one / place for one in (*near, PACKAGE, ROOT) if (one / place).exists()]
            assert known, f"{place}: {row}"
            near = [known[0], known[0].parent, *near]


def test_every_function_on_the_walks_of_the_page_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    walks = page.partition("## From an option to the builder")[2].partition("## Where to look")[0]
    names = [name for name in re.findall(r"`([a-z_]+(?:\.\w+)+)`", walks) if not name.endswith(".py")]
    assert len(names) > 20
    for name in names:
        found: object = pkgutil.resolve_name(f"trtopt.{name}")
        assert callable(found) or f"trtopt.{name}" in FILES, name
