import ast
import pickle
import re
from pathlib import Path

import pytest

import trtopt.errors
from trtopt.errors import TrtoptError, UsageError, rebuild

PACKAGE = Path(trtopt.errors.__file__).parent
DRAWN_LINE = re.compile(r"^(?P<depth>(?:│   |    |├── |└── )*)(?P<name>\w+Error)\b(?P<said>.*)$")


def drawn_tree() -> dict[str, tuple[str | None, str]]:
    """The tree in the module's docstring: name → (name of the parent, what the line says of it)."""
    assert trtopt.errors.__doc__
    branch: list[str] = []
    drawn: dict[str, tuple[str | None, str]] = {}
    for match in filter(None, map(DRAWN_LINE.match, trtopt.errors.__doc__.splitlines())):
        depth = len(match["depth"]) // 4
        del branch[depth:]
        drawn[match["name"]] = (branch[-1] if branch else None, match["said"])
        branch.append(match["name"])
    return drawn


def real_tree(kind: type[TrtoptError] = TrtoptError) -> dict[str, type[TrtoptError]]:
    """All classes of `trtopt.errors` by name."""
    found = {kind.__name__: kind} if kind.__module__ == trtopt.errors.__name__ else {}
    for child in kind.__subclasses__():
        found |= real_tree(child)
    return found


ALL = real_tree()


def test_the_tree_in_the_docstring_is_the_real_one() -> None:
    drawn = {name: parent for name, (parent, _) in drawn_tree().items()}
    real = {name: kind.__base__.__name__ for name, kind in ALL.items() if kind.__base__}
    assert drawn == real | {"TrtoptError": None}


def test_every_error_of_the_module_is_in_the_tree() -> None:
    defined = {
        name
        for name, thing in vars(trtopt.errors).items()
        if isinstance(thing, type) and issubclass(thing, BaseException)
    }
    assert defined == set(ALL)


def test_the_exit_codes_in_the_docstring_are_the_real_ones() -> None:
    tree = drawn_tree()
    stated = {
        name: int(match[1])
        for name, (_, said) in tree.items()
        if (match := re.search(r"exit code (\d+)", said))
    }
    usage = dict.fromkeys(("UsageError", "FixedBatchError", "WrongPathError"), 2)
    assert stated == {"TrtoptError": 1, "BoundError": 3, "PlanError": 3} | usage

    def inherited(name: str) -> int:
        parent = tree[name][0]
        return stated[name] if name in stated or parent is None else inherited(parent)

    assert {name: kind.exit_code for name, kind in ALL.items()} == {name: inherited(name) for name in tree}


def test_an_error_reads_as_its_problem_and_its_remedy() -> None:
    assert str(UsageError("no such flag", "omit it")) == "no such flag\n  → omit it"
    assert str(UsageError("no such flag")) == "no such flag"


@pytest.mark.parametrize("name", ALL)
def test_an_error_is_rebuilt_from_its_name_problem_and_remedy(name: str) -> None:
    error = rebuild(name, "what is wrong", "what to do")
    assert type(error) is ALL[name]
    assert (error.problem, error.remedy) == ("what is wrong", "what to do")


@pytest.mark.parametrize("name", ["", "NoSuchError", "ValueError", "SystemExit", "trtopt.errors.UsageError"])
def test_a_name_outside_the_tree_is_rebuilt_as_the_base(name: str) -> None:
    error = rebuild(name, "what is wrong", "what to do")
    assert type(error) is TrtoptError
    assert (error.problem, error.remedy) == ("what is wrong", "what to do")


@pytest.mark.parametrize("name", ALL)
def test_an_error_survives_pickling(name: str) -> None:
    error = pickle.loads(pickle.dumps(ALL[name]("what is wrong", "what to do")))
    assert type(error) is ALL[name]
    assert (error.problem, error.remedy) == ("what is wrong", "what to do")


def errors_made_in(file: Path) -> list[ast.Call]:
    """Every call in a file that makes one of the tree's errors."""
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ALL]


def test_every_error_that_is_made_says_what_to_do() -> None:
    made = {file: errors_made_in(file) for file in PACKAGE.rglob("*.py")}
    assert sum(map(len, made.values())) > 50
    silent = [
        f"{file.relative_to(PACKAGE)}:{call.lineno}"
        for file, calls in made.items()
        for call in calls
        if ast.unparse(call.func) != "GraphCaptureError"  # who captures goes on without
        and (len(call.args) != 2 or (isinstance(call.args[1], ast.Constant) and not call.args[1].value))
    ]
    assert silent == []
