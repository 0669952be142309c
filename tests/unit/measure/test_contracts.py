"""The contracts' terms, and the names that tell what was changed of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.support.command_line import DIGITS
from trtopt.errors import UsageError
from trtopt.measure import contracts
from trtopt.measure.contracts import CONTRACTS, TERMS, contract_named, flag, with_terms

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "graph": st.booleans(),
    "transfers": st.just(True),
    "pinned": st.booleans(),
    "queue_ahead": st.integers(0, 4),
    "sync": st.sampled_from(["spin", "blocking"]),
    "streams": st.integers(1, 4),
}
CHANGES = st.fixed_dictionaries({}, optional=VALUES).map(lambda terms: terms | {"transfers": True})


def test_every_term_of_a_contract_can_be_changed() -> None:
    assert sorted(TERMS) == sorted(VALUES)


def test_serving_is_what_a_good_server_does() -> None:
    serving = CONTRACTS["serving"]
    assert (serving.graph, serving.transfers, serving.pinned, serving.sync) == (True, True, True, "spin")
    assert serving.queue_ahead == 2  # one query's input, another's compute, a third one's output at a time


@pytest.mark.parametrize(
    ("base", "terms", "name"),
    [
        ("trtexec-11", {}, "trtexec-11"),
        ("trtexec-11", {"graph": True}, "trtexec-11"),
        ("trtexec-11", {"graph": False}, "trtexec-11+no-graph"),
        ("trtexec-10", {"graph": True, "pinned": False}, "trtexec-10+graph+no-pinned"),
        ("isolated", {"streams": 2, "transfers": True}, "isolated+transfers+streams=2"),
        ("serving", {"queue_ahead": 5, "sync": "blocking"}, "serving+queue=5+sync=blocking"),
    ],
)
def test_a_changed_contract_tells_every_change(base: str, terms: dict[str, object], name: str) -> None:
    assert with_terms(contract_named(base), terms).name == name


@given(st.sampled_from(list(CONTRACTS)), CHANGES, CHANGES)
def test_a_name_tells_the_terms_and_not_the_way_to_them(base: str, first: Any, second: Any) -> None:
    contract = with_terms(with_terms(CONTRACTS[base], first), second)
    assert contract == with_terms(CONTRACTS[base], first | second)
    differing = [term for term in VALUES if getattr(contract, term) != getattr(CONTRACTS[base], term)]
    told = contract.name.split("+")[1:]
    assert sorted(told) == sorted(flag(term, getattr(contract, term)) for term in differing)
    assert contract_named(contract.name) == contract


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        ({"streams": 0}, "--streams 0: out of range"),
        ({"streams": 1025}, "--streams 1025"),
        ({"queue_ahead": -1}, "--queue -1: out of range"),
        ({"streams": True}, "Expected `int`, got `bool`"),
        ({"graph": 1}, "Expected `bool`, got `int`"),
        ({"sync": "sleep"}, "Invalid enum value 'sleep'"),
        ({"queue": 2}, "unknown field `queue`"),
        ({"pinned": False}, "--no-pinned: without transfers"),
        ({"transfers": False, "pinned": False}, "--no-pinned: without transfers"),
    ],
)
def test_a_term_that_cannot_be_is_refused(terms: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        with_terms(CONTRACTS["trtexec-11"], terms)


def test_a_contract_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        contract_named("mine")
    for name in ("mine+graph", "trtexec-11+name=mine", "trtexec-11+", "trtexec-11+no-graph=1"):
        with pytest.raises(UsageError, match="no such contract"):
            contract_named(name)
    with pytest.raises(UsageError, match="Expected `int`, got `bool`"):
        contract_named("trtexec-11+streams")
    assert "trtexec-10, trtexec-11, serving, isolated" in caught.value.remedy


# ── one that is added ───────────────────────────────────────────────────────────────────────────────────

ENTRY = """_TABLE = (
    (Contract(name="added", graph=True, transfers=True, queue_ahead=3, sync="spin"), "as a test has it"),
"""
LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("trtopt.measure.contracts", sys.argv.pop(1))
contracts = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = contracts
spec.loader.exec_module(contracts)
"""
CLI = "from trtopt.cli.main import main; main()"
TABLE = "from tests.support.reference_pages import contracts_table; print(contracts_table())"


@pytest.mark.long
def test_one_entry_is_all_that_a_new_contract_takes(tmp_path: Path) -> None:
    source = Path(contracts.__file__).read_text("utf-8")
    changed_source = tmp_path / "contracts.py"
    changed_source.write_text(source.replace("_TABLE = (\n", ENTRY), "utf-8")

    def run(code: str, *arguments: str) -> str:
        command = [sys.executable, "-c", LOAD + code, str(changed_source), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path.cwd())
        return " ".join((done.stdout + done.stderr).split())

    for command in ("bench", "sweep", "compare"):
        assert "added (as a test has it), trtexec-10" in run(CLI, command, "--help")
    assert "choose among added, trtexec-10" in run(CLI, "bench", str(DIGITS), "--contract", "unknown")
    assert "| `added` | yes | yes, page-locked | 3 | spinning | as a test has it |" in run(TABLE)

    result = tmp_path / "result.json"
    run(
        CLI, "bench", str(DIGITS), "--backend", "onnxruntime", "--contract", "added+no-graph",
        "--duration", "0.2", "--warmup", "0", "--json", str(result),
    )  # fmt: skip
    (point,) = json.loads(result.read_text("utf-8"))["points"]
    assert point["throughput"]["contract"]["name"] == "added+no-graph"
