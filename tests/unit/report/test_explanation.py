"""Why one engine is slower than another, as text and as a waterfall."""

from io import StringIO
from itertools import pairwise

import pytest
from rich.console import Console

from tests.support.inspected import profiled
from tests.support.pages import engine_of
from tests.unit.inspect.test_explanation import engine
from trtopt.inspect.explanation import difference
from trtopt.records import Explanation, Replacement
from trtopt.report.explanation import explanation_view, replaced_text, waterfall

CONV = profiled("conv", "Conv", 1.0, dtype="float16")
SLOWER = profiled("conv", "Conv", 1.5, dtype="int8")
POOL = profiled("pool", "MaxPool", 0.25, kind="pool")


def shown(*engines: object, width: int = 80) -> str:
    found = Explanation(created="", a="fp16", b="int8", device="H200", engines=engines)  # type: ignore[arg-type]
    console = Console(width=width, file=StringIO())
    console.print(explanation_view(found))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_each_cause_has_its_cost_its_share_and_what_may_save_it_or_that_nothing_is_known() -> None:
    text = shown(difference(engine("a", CONV), engine("b", SLOWER, POOL)), width=160)
    rows = {" ".join(line.split()) for line in text.splitlines()}
    assert "+0.5000 +25.0% 1.0000 1.5000 1 → 1 products, float16 → int8: slower Conv" in rows
    assert "0.5000 products, float16 → int8: slower --exclude these nodes: they stay in float" in rows
    assert "0.2500 pooling none known" in rows


def test_kernels_of_cpp_are_named_without_template_arguments() -> None:
    change = Replacement(a=("void f<g<int>, 2>(g<int>::p)", "memset"), b=(), a_ms=1.0, b_ms=0.0)
    assert replaced_text(change) == "no known node: void f<…> + memset → nothing"


def test_a_real_pair_fits_a_narrow_terminal() -> None:
    found = difference(engine_of("r50_fp16"), engine_of("r50_mo_int8"))
    lines = shown(found).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any("products, float16 →" in line for line in lines)


def test_a_waterfall_goes_from_a_to_b() -> None:
    found = difference(engine("a", CONV), engine("b", SLOWER, POOL))
    rows = waterfall(found).spec["data"]["values"]
    assert [row["step"] for row in (rows[0], rows[-2], rows[-1])] == ["A", "all others", "B"]
    for before, row in pairwise(rows[:-1]):
        assert row["from"] == pytest.approx(before["to"])
        assert row["to"] - row["from"] == pytest.approx(row["ms"])
    assert rows[-2]["to"] == pytest.approx(found.b_ms)
