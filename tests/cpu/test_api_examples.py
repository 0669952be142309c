"""The examples in the help of the public functions run, and their results show themselves."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.api_examples import example_files, run_example
from tests.unit.test_api import JOBS
from trtopt.records import to_json
from trtopt.records.base import Result
from trtopt.records.build import FolderCheck
from trtopt.records.precision import BisectReport
from trtopt.rewrite.rewrite_trace import RewriteTrace

pytestmark = pytest.mark.long

IN_ORDER = (
    *("build", "bench", "profile", "compare", "check", "sweep", "rewrite", "cast", "quantize", "tune"),
    *("explain", "history", "inspect", "lint", "bisect", "reduce", "verify"),
)
"""Later ones use what earlier ones made."""
WITHOUT_RESULT = {"add_to_history", "report"}
ELSEWHERE = {"export", "plan"}
"""See tests/export."""
OF_ARRAYS = {"pack", "unpack"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """The result of every example, by the name of its function."""
    found: dict[str, Result] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(example_files(tmp_path_factory.mktemp("examples")))
        for name in IN_ORDER:
            if name == "history":
                Path("bench.json").write_bytes(to_json(found["bench"].record()))
                run_example("add_to_history")
            (found[name],) = (one for one in run_example(name).values() if isinstance(one, Result))
        run_example("report")
    return found


def test_every_example_prints_what_the_help_shows(results: dict[str, Result]) -> None:
    assert results.keys() == set(JOBS) - WITHOUT_RESULT - ELSEWHERE - OF_ARRAYS


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_result_shows_itself(results: dict[str, Result], name: str) -> None:
    result = results[name]
    assert repr(result).startswith(f"<{type(result).__name__}: ")
    assert repr(result).isprintable()
    assert len(repr(result)) < 160
    assert result.table()
    assert "".join(ElementTree.fromstring(f"<div>{result._repr_html_()}</div>").itertext()).strip()
    assert result.to_dict() == json.loads(to_json(result.record()))
    columns = {tuple(row) for row in result.rows()}
    assert len(columns) == (0 if isinstance(result, RewriteTrace | BisectReport | FolderCheck) else 1)


def test_the_rows_are_those_of_the_table(results: dict[str, Result]) -> None:
    text = results["bench"].table()
    (row,) = results["bench"].rows()
    assert f"{row['p50_ms']:.3f}" in text
    assert f"{row['samples_per_s']:,.0f}" in text
