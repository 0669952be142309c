"""The public functions: what they take is written out, typed, told in their help, and reaches the recipe."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import trtopt
import trtopt.export.spec
import trtopt.rewrite.rules
from tests.support.paths import ROOT
from trtopt.errors import UsageError
from trtopt.precision.bounds import Bounds
from trtopt.recipe import Recipe
from trtopt.requests.build import BuildRequest

JOBS = (
    "add_to_history",
    "bench",
    "bisect",
    "build",
    "cast",
    "check",
    "compare",
    "explain",
    "export",
    "history",
    "inspect",
    "lint",
    "pack",
    "plan",
    "profile",
    "quantize",
    "reduce",
    "report",
    "rewrite",
    "sweep",
    "tune",
    "unpack",
    "verify",
)
NOT_SWEPT = {
    "selection_budget",
    "fused_plugins",
    "ranges",
    "dynamic",
    "verdict",
    "bounds",
    "compute_capability",
}
"""Settings that a sweep refuses or has no use for."""
WRONG: dict[str, object] = {
    "batch": ["one"],
    "shapes": {"x": 1},
    "axes": {"x": "long"},
    "io": {"x": 1},
    "normalize": {"x": 1},
}
WRONG_ELSE: Any = [["wrong"]]
PATHS = {"calib", "timing_cache"}
"""Whatever is given for these is taken for a path."""


def parameters_of(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def test_dir_lists_the_public_names() -> None:
    assert set(JOBS) <= set(dir(trtopt))
    assert dir(trtopt) == sorted(trtopt.__all__)


def test_a_public_function_is_not_hidden_by_the_package_of_its_name() -> None:
    """`trtopt.export`, `trtopt.report` and `trtopt.rewrite` are packages too, and they are loaded here."""
    assert not any(isinstance(getattr(trtopt, name), ModuleType) for name in JOBS)
    assert trtopt.rewrite.__name__ == "rewrite"


@pytest.mark.parametrize("name", JOBS)
def test_every_parameter_is_named_typed_and_told(name: str) -> None:
    function = getattr(trtopt, name)
    parameters = parameters_of(function)
    assert {one.kind for one in parameters.values()} <= {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    }
    assert [one for one in parameters.values() if re.search(r"\bAny\b|_empty", str(one.annotation))] == []
    told = (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\nReturns:")[0]
    named = {
        word for entry in re.findall(r"^ {4}(\w[\w, ]*):", told, re.MULTILINE) for word in entry.split(", ")
    }
    assert named == parameters.keys()


def test_the_listener_comes_last() -> None:
    keywords = {name: [*inspect.signature(getattr(trtopt, name)).parameters] for name in JOBS}
    heard = {name: found for name, found in keywords.items() if "listener" in found}
    assert len(heard) > 8
    assert [name for name, found in heard.items() if found[-1] != "listener"] == []


@pytest.mark.parametrize("name", JOBS)
def test_the_help_has_every_section(name: str) -> None:
    described = inspect.getdoc(getattr(trtopt, name)) or ""
    sections = re.findall(r"^(\w+):$", described, re.MULTILINE)
    assert sections == ["Args", "Returns", "Raises", "Example"]


def keyword_catchers() -> Iterator[str]:
    for file in sorted((ROOT / "trtopt" / "workflows").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.args.kwarg is not None:
                yield f"{file.name}: {node.name}"


def test_an_editor_shows_the_first_line_of_the_help() -> None:
    lines = ast.parse((ROOT / "trtopt" / "api.py").read_text("utf-8")).body
    for made, text in pairwise(lines):
        if isinstance(made, ast.Assign) and isinstance(made.value, ast.Call):
            (name,) = (target.id for target in made.targets if isinstance(target, ast.Name))
            assert isinstance(text, ast.Expr), name
            first = (getattr(trtopt, name).__doc__ or "").split("\n", 1)[0]
            assert ast.literal_eval(text.value) == first


def test_no_workflow_takes_whatever_keywords_it_is_given() -> None:
    assert list(keyword_catchers()) == []


def test_build_and_sweep_take_every_field_of_a_recipe() -> None:
    fields = {"data" if field == "calib" else field for field in Recipe.__struct_fields__} - {"bounds"}
    assert {*Bounds.__struct_fields__} <= parameters_of(trtopt.build).keys()
    assert fields - parameters_of(trtopt.build).keys() == set()
    assert fields - NOT_SWEPT - parameters_of(trtopt.sweep).keys() == set()
    assert NOT_SWEPT & parameters_of(trtopt.sweep).keys() == set()


@pytest.mark.parametrize("field", sorted({*Recipe.__struct_fields__} - PATHS - {"bounds"}))
def test_what_build_is_given_reaches_the_field_of_the_recipe(field: str) -> None:
    wrong: dict[str, Any] = {field: WRONG.get(field, WRONG_ELSE)}
    if field == "plugins":
        wrong = {field: ["/no/such.so"]}
        with pytest.raises(UsageError, match=r"/no/such\.so"):
            trtopt.build(ROOT / "models" / "digits" / "digits.onnx", **wrong)
        return
    with pytest.raises(UsageError, match=rf"\$\.{field}\b"):
        _ = BuildRequest(Path("unread.onnx"), **wrong).recipe


@pytest.mark.parametrize("name", [name for name in JOBS if name not in ("pack", "unpack")])
def test_a_value_of_another_type_is_refused_by_the_name_of_its_parameter(name: str) -> None:
    function: Any = getattr(trtopt, name)
    needed = [one.name for one in parameters_of(function).values() if one.default is inspect.Parameter.empty]
    given: dict[str, object] = {"sources": ["unread"], "results": ["unread"], "precision": "int8"}
    given = {one: given.get(one, "unread") for one in needed}
    for parameter in parameters_of(function):
        with pytest.raises(UsageError, match=f"^{parameter}=<object "):
            function(**given | {parameter: object()})


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("bench", {"batch": []}, r"batch=\[\]: "),
        ("compare", {"batch": []}, r"batch=\[\]: "),
        ("sweep", {"axes": {"x": 0}}, r"axes\['x'\]=0: not a list"),
        ("sweep", {"axes": {"x": []}}, r"axes\['x'\]=\[\]: "),
        ("bench", {"batch": [1, 1.5]}, r"batch\[1\]=1.5: "),
        ("bench", {"trust": True}, "trust=True: not a list"),
        ("bench", {"graph": "no"}, "graph='no': "),
        ("bench", {"stop_early": "no"}, "stop_early='no': "),
        ("bench", {"stop_early": None}, "stop_early=None: not True or False"),
        ("bench", {"duration": True}, "duration=True: not a number"),
        ("tune", {"include": ["no-such"]}, r"include\[0\]='no-such': no such choice"),
        ("build", {"io": {"x": 0}}, r"io\['x'\]=0: not text"),
        ("build", {"exclude": [0]}, r"exclude\[0\]=0: not text"),
    ],
)
def test_entries_of_lists_and_dictionaries_are_judged_too(
    name: str, given: dict[str, Any], problem: str
) -> None:
    function: Any = getattr(trtopt, name)
    with pytest.raises(UsageError, match=f"^{problem}"):
        function(*["unread"] * (2 if name == "compare" else 1), **given)


@pytest.mark.parametrize(
    ("value", "remedy"), [("a.engine", "give trust=['a.engine']"), (True, "give a list"), (3, "give a list")]
)
def test_a_list_is_proposed_of_what_could_be_in_it(value: object, remedy: str) -> None:
    with pytest.raises(UsageError) as refused:
        trtopt.bench("unread", trust=value)  # type: ignore[arg-type]
    assert refused.value.remedy == remedy


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    model = ROOT / "models" / "digits" / "digits.onnx"
    manifest = trtopt.build(
        model,
        tmp_path / "b",
        batch=[np.int64(1), np.int64(4)],
        jobs=np.int64(1),
        force=np.True_,
        backend="onnxruntime",
    )
    assert [engine.path for engine in manifest.engines] == ["batch1.onnx", "batch4.onnx"]
    report = trtopt.bench(
        tmp_path / "b", batch=np.int64(1), duration=np.float32(0.05), warmup=np.float32(0), layers=np.True_
    )
    assert report.points[0].layers


@pytest.mark.parametrize("name", [*JOBS, "optimize"])
def test_a_number_that_holds_by_default_is_told_with_its_parameter(name: str) -> None:
    function = getattr(trtopt, name)
    help_text = inspect.getdoc(function) or ""
    for parameter in inspect.signature(function).parameters.values():
        value = parameter.default
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        entry = re.search(
            rf"^ +(?:[\w, ]*\b)?{parameter.name}(?:, [\w, ]+)?: (.*?)(?=^ +[\w, ]+: |\n\n|\Z)",
            help_text,
            re.MULTILINE | re.DOTALL,
        )
        assert entry, parameter.name
        text = " ".join(entry[1].split())
        assert f"[default: {value:g}]" in text or text.startswith("as for"), (parameter.name, text)


def test_what_the_command_line_shows_beside_the_help_is_told() -> None:
    """Words of a metavar, of a heading and of a table: the signature has none of them."""
    for name, text in (
        ("cast", "one of 8.6, 10, 11, rtx"),
        ("bench", "as p99=5ms"),
        ("build", "share the work of a node (ONNX Runtime)"),
        ("optimize", "-1 to 1 [default: 0.99]"),
    ):
        assert text in " ".join((getattr(trtopt, name).__doc__ or "").split()), name


def test_the_reference_page_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    assert sorted(re.findall(r"auto(?:function|class):: trtopt\.(\w+)$", page, re.MULTILINE)) == sorted(
        {*trtopt.__all__} - {"TrtoptError", "__version__"}  # which the page of exit codes has
    )
