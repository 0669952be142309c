"""The page as text: what it says, that nothing in it can break out, and that it needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from tests.support import examples
from tests.support.pages import renamed, resnet
from trtopt.errors import BackendMissingError
from trtopt.records import Collected, PrecisionReceipt
from trtopt.report.html.library import plotting_library
from trtopt.report.html.page import page

LIBRARY = "window.vegaEmbed = '</script><!--';"
ODD = "</script><img src=x onerror=alert(1)>\"'&amp;\x1e\x00\r\n\u2028\ud800 {{ 7*7 }} {% x %} [bold]"
SEEN = "</script><img src=x onerror=alert(1)>\"'&amp;\\x1e\\x00\\r\\n\\u2028\\ud800 {{ 7*7 }} {% x %} [bold]"
SECTIONS = [
    *("summary", "latency", "batches", "layers", "fusion", "precision", "roofline", "memory"),
    *("difference", "environment", "commands"),
]


class Read(HTMLParser):
    """A page taken apart: elements with their attributes, scripts by their order, sections' text."""

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
        if tag == "section":
            self._section = dict(attrs)["id"] or ""
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""
        if tag == "section":
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
        found: dict[str, Any] = next(
            one for one in self.data["tables"].values() if one["title"].startswith(title)
        )
        return found


def read(found: Collected) -> Read:
    return Read(page(found, LIBRARY, "trtopt 0.1.0, today"))


def everything() -> Collected:
    found = resnet()
    return msgspec.structs.replace(
        found, manifest=examples.manifest(), results={"result.json": examples.report()}
    )


# ── what it says ────────────────────────────────────────────────────────────────────────────────────────


def test_every_section_is_there_in_its_order() -> None:
    shown = read(everything())
    assert [attrs["id"] for tag, attrs in shown.elements if tag == "section"] == SECTIONS
    assert shown.values("href") == [f"#{name}" for name in SECTIONS]


def test_a_build_alone_says_what_is_missing_with_the_commands_that_make_it() -> None:
    text = read(Collected(folder="/a folder", name="d", manifest=examples.manifest())).text
    assert "trtopt bench '/a folder' --json '/a folder/result.json'" in text["latency"]
    for section in ("layers", "fusion", "precision", "roofline"):
        assert "trtopt profile '/a folder' -o '/a folder'" in text[section]
    assert "trtopt profile '/a folder' --memory -o '/a folder'" in text["memory"]
    assert "--against EARLIER" in text["difference"]


def test_results_without_a_build_are_made_from_the_model() -> None:
    text = read(Collected(folder="d", name="d", results={"result.json": examples.report()})).text
    assert "there is no manifest.json" in text["environment"]
    assert "trtopt bench MODEL.onnx --batch 1,8,32 --json d/result.json" in text["batches"]
    # its layers were timed already
    assert "trtopt profile MODEL.onnx --result d/result.json -o d" in text["layers"]


def test_the_layers_of_a_real_engine_are_rows_with_their_details() -> None:
    table = read(resnet()).table("Layers with the nodes they cover")
    names = [column["name"] for column in table["columns"]]
    assert (len(table["rows"]), names[:4]) == (60, ["layer", "ms", "share", "kind"])
    row, details = table["rows"][1], dict(table["details"][1])
    stem = "/m/resnet/embedder/embedder/convolution/Conv + /m/resnet/embedder/embedder/activation/Relu"
    assert (row[0], row[1], *row[3:5]) == (stem, 0.002, "CaskConvolution", "float16")
    assert row[2] == pytest.approx(0.002 / 1.83, rel=1e-5)
    assert details["tactic"].startswith("sm90_xmma_fprop_image_first_layer")
    assert details["operators"] == "Conv, Relu"


def test_several_engines_have_panels_of_their_own() -> None:
    shown = read(resnet())
    panels = [attrs for tag, attrs in shown.elements if tag == "div" and attrs.get("class") == "panel"]
    layers = [one for one in panels if (one["data-label"] or "").startswith("batch ")]
    assert [one["data-label"] for one in layers[:2]] == ["batch 1", "batch 8"]
    assert ["hidden" in one for one in layers[:2]] == [False, True]


def test_figures_that_are_not_to_be_trusted_are_marked() -> None:
    shown = read(everything())
    assert "result.json: batch 8 is not trustworthy" in shown.text["summary"]
    assert shown.table("Latency of one query")["rows"][0][0] == "8!"


def test_the_figures_that_stand_out_say_under_which_terms_they_were_taken() -> None:
    text = read(everything()).text["summary"]
    assert "lowest median latency2.250 msbatch 8, own" in text
    assert "samples/sbatch 8, own" in text


def test_what_is_left_out_and_noted_is_reported() -> None:
    found = msgspec.structs.replace(everything(), left_out={"x.json": "no file"}, notes=("two builds",))
    text = read(found).text
    assert "not on this page: x.json, no file" in text["environment"]
    assert "two builds" in text["summary"]


def test_commands_are_written_as_a_shell_takes_them() -> None:
    text = read(resnet()).text["commands"]
    assert "trtopt profile 'a folder' -o x" in text
    assert "/opt/bin" not in text


def test_an_engine_that_was_not_run_shows_what_its_graph_requests() -> None:
    found = resnet()
    report = found.profiles["profile.json"]
    untimed = {"ms": None, "low_ms": None, "high_ms": None}
    layers = tuple(msgspec.structs.replace(layer, **untimed) for layer in report.engines[0].layers)
    receipt = PrecisionReceipt(
        time_ran=None, weights_ran={"unknown": 1.0}, weights_requested={"float16": 1.0}
    )
    engine = msgspec.structs.replace(
        report.engines[0], layers=layers, sum_ms=0.0, latency_ms=None, receipt=receipt
    )
    report = msgspec.structs.replace(report, engines=(engine,), missing=("it was not run",))
    shown = read(msgspec.structs.replace(found, profiles={"profile.json": report}))
    assert "not known: it was not run" in shown.text["layers"]
    assert "there is nothing to plot" in shown.text["roofline"]
    assert "The engine was not run" in shown.text["fusion"]
    assert "60 nodes of the ONNX file, not timed" in shown.text["layers"]
    table = shown.table("Nodes with their minimum cost")
    names = [column["name"] for column in table["columns"]]
    assert names == ["layer", "kind", "type", "floor ms", "bound by", "MFLOP", "MB"]
    assert table["sorted_by"] == names.index("MFLOP")
    assert "profile.json: not known: it was not run" in shown.text["summary"]
    assert "type that ran most" not in shown.text["summary"]


# ── nothing in it can break out ─────────────────────────────────────────────────────────────────────────


def test_names_of_any_characters_stay_text() -> None:
    found = renamed(everything(), {0: ODD, 1: ODD})
    found = msgspec.structs.replace(found, folder=ODD, name=ODD, left_out={ODD: ODD}, notes=(ODD,))
    shown = read(found)
    assert {tag for tag, _ in shown.elements}.isdisjoint({"img", "bold"})
    assert len(shown.scripts) == 3
    assert shown.table("Layers with the nodes they cover")["rows"][0][0] == f"reformat at {SEEN}"
    assert SEEN in shown.text["summary"]
    assert SEEN in shown.text["environment"]


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


@pytest.mark.parametrize("module", ["jinja2", "vl_convert"])
def test_a_missing_extra_is_named_with_its_install_line(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendMissingError) as caught:
        plotting_library()
    assert caught.value.remedy == "pip install jinja2 vl-convert-python"
