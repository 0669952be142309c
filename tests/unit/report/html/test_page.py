"""The page as text: what it says, that nothing in it can break out, and that it needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import examples
from tests.support.pages import renamed, resnet
from trtopt import api
from trtopt.errors import BackendMissingError
from trtopt.records import Collected
from trtopt.records.precision import CheckedSubject, CheckReport, OutputDifference, Violation
from trtopt.report.html.page import library_name, page_of, plotting_library
from trtopt.report.html.pages import report_page

LIBRARY = "window.vegaEmbed = '</script><!--';"
ODD = "</script><img src=x onerror=alert(1)>\"'&amp;\x1e\x00\r\n\u2028\ud800 {{ 7*7 }} {% x %} [bold]"
SEEN = "</script><img src=x onerror=alert(1)>\"'&amp;\\x1e\\x00\\r\\n\\u2028\\ud800 {{ 7*7 }} {% x %} [bold]"
SECTIONS = ["answer", "fast", "why", "accurate", "made"]


class Read(HTMLParser):
    """A page taken apart: elements with their attributes, scripts by their order, questions' text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: dict[str, str] = {}
        self._section, self._inside = "", ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag in ("section", "header", "main") or dict(attrs).get("id") == "missing":
            self._section = dict(attrs).get("id") or tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""
        if tag in ("section", "header", "main"):
            self._section = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._section:
            self.text[self._section] = self.text.get(self._section, "") + data

    def values(self, attribute: str) -> list[str]:
        return [value for _, attrs in self.elements if (value := attrs.get(attribute)) is not None]

    @property
    def data(self) -> dict[str, Any]:
        found = json.loads(self.scripts[0])
        assert isinstance(found, dict)
        return found

    def table(self, title: str) -> dict[str, Any]:
        """The first whose title begins so."""
        found: dict[str, Any] = next(one for one in self.data["tables"] if one["title"].startswith(title))
        return found


def read(found: Collected) -> Read:
    return Read(
        page_of(
            report_page(found, ("/opt/bin/trtopt", "report", found.folder)), LIBRARY, "trtopt 0.1.0, today"
        )
    )


def everything() -> Collected:
    found = resnet()
    return msgspec.structs.replace(
        found, manifest=examples.manifest(), results={"result.json": examples.report()}
    )


# ── what it says ────────────────────────────────────────────────────────────────────────────────────────


def test_every_question_is_there_in_its_order_with_a_link_to_it() -> None:
    shown = read(everything())
    assert [attrs["id"] for tag, attrs in shown.elements if tag == "section"] == SECTIONS
    assert shown.values("href") == ["#answer", *(f"#{name}" for name in SECTIONS)]


def test_the_title_names_model_device_date_and_whether_to_trust_it() -> None:
    found = everything()
    report = msgspec.structs.replace(found.results["result.json"], argv=("trtopt", "bench", "m/resnet.onnx"))
    text = read(msgspec.structs.replace(found, results={"result.json": report})).text["header"]
    for part in ("resnet", "A GPU, tensorrt 10.16.1", "2026-01-01 00:00 UTC", "not trustworthy: batch 8"):
        assert part in text


def test_a_build_alone_says_how_to_measure_it() -> None:
    shown = read(Collected(folder="/a folder", name="d", manifest=examples.manifest()))
    text = " ".join(shown.text["answer"].split())
    assert "Measure it: trtopt bench '/a folder' --json '/a folder/bench.json'" in text
    assert "Find where the time goes: trtopt profile '/a folder' -o '/a folder'" in text
    assert "why" not in shown.text
    assert [attrs for _, attrs in shown.elements if "warning" in (attrs.get("class") or "")] == [
        {"class": "warning"}  # where there are no scripts
    ]


def test_the_layers_of_a_real_engine_are_rows_with_their_details() -> None:
    table = read(resnet()).table("batch 1: 60 layers")
    names = [column["name"] for column in table["columns"]]
    assert (len(table["rows"]), names[:4]) == (60, ["layer", "ms", "share", "spread"])
    row, details = table["rows"][1], dict(table["details"][1])
    stem = "/m/resnet/embedder/embedder/convolution/Conv + /m/resnet/embedder/embedder/activation/Relu"
    assert (row[0], row[1], *row[7:9]) == (stem, 0.002, "float16", "CaskConvolution")
    assert row[2] == pytest.approx(0.002 / 1.83, rel=1e-5)
    assert details["tactic"].startswith("sm90_xmma_fprop_image_first_layer")
    assert details["operators"] == "Conv, Relu"


def test_several_engines_have_panels_of_their_own() -> None:
    shown = read(resnet())
    panels = [attrs for tag, attrs in shown.elements if tag == "div" and attrs.get("class") == "panel"]
    layers = [one for one in panels if (one["data-label"] or "").startswith("batch ")]
    assert [one["data-label"] for one in layers[:2]] == ["batch 1", "batch 8"]
    assert ["hidden" in one for one in layers[:2]] == [True, False]  # the busiest is open


def test_figures_that_are_not_to_be_trusted_are_marked() -> None:
    shown = read(everything())
    assert "too hot at batch 8" in shown.text["answer"]
    assert shown.table("latency: host clock")["rows"][0][0] == "8!"


def test_the_answer_says_under_which_terms_its_figures_were_taken() -> None:
    text = " ".join(read(everything()).text["answer"].split())
    assert "deployfp16, batch 8contract own; result.json" in text
    assert "median latency2.250 ms" in text
    assert "throughput3,556 samples/s" in text


def test_what_is_left_out_and_noted_is_reported_once() -> None:
    found = msgspec.structs.replace(everything(), left_out={"x.json": "no file"}, notes=("two builds",))
    text = read(found).text
    assert "not on this page: x.json, no file" in text["made"]
    assert sum(part.count("two builds") for part in text.values()) == 1


def test_checks_answer_whether_it_is_accurate() -> None:
    difference = OutputDifference(output="y", values=8, cosine=0.98, sqnr_db=14.5, max_abs=0.5, top1=0.75)
    violation = Violation(output="y", measure="cosine", found=0.98, bound=0.99)
    subject = CheckedSubject(
        name="batch8.engine",
        backend="tensorrt",
        batch=8,
        samples=4,
        outputs=(difference,),
        violations=(violation,),
    )
    check = CheckReport(
        created="2026-01-01T00:00:00+00:00",
        argv=("trtopt", "check", "d"),
        model="d",
        against="m.onnx",
        against_sha256="b" * 64,
        data="x.npz",
        data_is_random=True,
        subjects=(subject,),
    )
    shown = read(msgspec.structs.replace(everything(), checks={"check.json": check}))
    assert "batch8.engine: cosine of 'y' is 0.98, the bound is 0.99" in shown.text["answer"]
    assert "random data: accuracy on real data is unknown" in shown.text["accurate"]
    assert "output y: SQNR 14.5 dB, cosine 0.9800000" in shown.text["accurate"]
    assert "NOT MET: cosine of &#x27;y&#x27; is 0.98, the bound is 0.99" in check._repr_html_()
    assert "trtopt check d" in shown.text["made"]


def test_commands_are_written_as_a_shell_takes_them_this_pages_as_it_was_typed() -> None:
    text = read(resnet()).text["made"]
    assert "trtopt profile 'a folder' -o x" in text
    assert "/opt/bin" not in text
    assert "trtopt report 'a folder'" in text.split("this page")[1]


# ── nothing in it can break out ─────────────────────────────────────────────────────────────────────────


def test_names_of_any_characters_stay_text() -> None:
    found = renamed(everything(), {0: ODD, 1: ODD, 59: ODD})
    profile = found.profiles["profile.json"]
    first = profile.engines[0]
    layers = tuple(msgspec.structs.replace(one, kind=ODD) for one in first.layers)
    engines = (msgspec.structs.replace(first, layers=layers), *profile.engines[1:])
    found = msgspec.structs.replace(
        found, profiles={"profile.json": msgspec.structs.replace(profile, engines=engines)}
    )
    found = msgspec.structs.replace(found, folder=ODD, name=ODD, left_out={ODD: ODD}, notes=(ODD,))
    shown = read(found)
    assert {tag for tag, _ in shown.elements}.isdisjoint({"img", "bold"})
    assert len(shown.scripts) == 3
    assert shown.table("batch 1: 60 layers")["rows"][0][0] == f"reformat at {SEEN}"
    assert SEEN in shown.text["answer"]
    assert SEEN in shown.text["made"]
    assert SEEN in shown.text["header"]
    assert any(SEEN in label for label in shown.values("aria-label"))


def test_only_the_pages_own_scripts_may_run_and_nothing_may_be_fetched() -> None:
    shown = read(renamed(everything(), {0: ODD}))
    (policy,) = [attrs["content"] or "" for _, attrs in shown.elements if "http-equiv" in attrs]
    assert policy.startswith(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-eval' 'sha256-"
    )
    hashes = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in shown.scripts[1:]
    ]
    assert re.findall(r"'sha256-([^']*)'", policy) == hashes
    assert shown.values("src") == []
    assert all(href.startswith("#") for href in shown.values("href"))
    handlers = [name for _, attrs in shown.elements for name in attrs if name.startswith("on")]
    assert handlers == []


def test_the_plotting_library_is_one_script_without_an_end_in_it() -> None:
    library = plotting_library()
    assert "</script" not in library
    assert "window.vegaEmbed=" in library[-200:]


def test_the_plotting_library_is_bundled_once_and_without_a_place_to_keep_it_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundled = ["second", "first"]
    monkeypatch.setattr(api, "plotting_library", bundled.pop)
    monkeypatch.setenv("TRTOPT_CACHE_DIR", str(tmp_path / "cache"))
    assert [api._plotting_library() for _ in range(2)] == ["first", "first"]
    monkeypatch.setenv("TRTOPT_CACHE_DIR", "/proc/nowhere")
    assert api._plotting_library() == "second"


@pytest.mark.parametrize("module", ["jinja2", "vl_convert"])
def test_a_missing_extra_is_named_with_its_install_line(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendMissingError) as caught:
        library_name()
    assert caught.value.remedy == "pip install jinja2 vl-convert-python"
