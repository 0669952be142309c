"""One declaration of a builder setting is enough: everything else follows or is held to it."""

from dataclasses import dataclass
from typing import Annotated

import click
import msgspec
import pytest

from tests.support.paths import ROOT
from trtopt.builder_settings import (
    SETTINGS,
    Setting,
    Settings,
    cache_terms,
    check_backend,
    plain_attributes,
    recorded_settings,
    setting_of,
)
from trtopt.cli.declared import parameters_of
from trtopt.errors import UsageError
from trtopt.options import check_values, field_of
from trtopt.recipe import Recipe
from trtopt.records import Backend, BuildSettings, CacheTerms

PAGE = ROOT / "docs" / "reference" / "builder-settings.md"
FIXED = {"timing_cache", "calib", "precision", "verdict", "bounds", "rewrite", "add_rule", "jobs"}
FIXED |= {"build_timeout"}
TYPED = {"io", "normalize", "preprocess", "forms", "selection_budget", "fused_plugins", "exclude"}
WHERE = {"executor", "gpu_model", "retries"}
SHAPES = {"batch", "ranges", "dynamic", "shapes", "axes", "backend"}
"""Fields of a recipe that are no settings of the builder."""

STREAMS_BESIDE = Annotated[
    int | None,
    Setting(
        "Streams that layers may run on side by side.",
        range=(0, 7),
        attribute="max_aux_streams",
        decides_tactics=True,
        needs="weakly_typed",
    ),
]
DECLARED = field_of("streams_beside", STREAMS_BESIDE, None)
MADE_UP = setting_of(DECLARED)
WITH_MADE_UP = (*SETTINGS, MADE_UP)
FIELD = (MADE_UP.name, int | None, None)
MadeUpRecipe = msgspec.defstruct("MadeUpRecipe", [FIELD], bases=(Recipe,), frozen=True, kw_only=True)
MadeUpRecord = msgspec.defstruct("MadeUpRecord", [FIELD], bases=(BuildSettings,), frozen=True, kw_only=True)
MadeUpTerms = msgspec.defstruct("MadeUpTerms", [FIELD], bases=(CacheTerms,), frozen=True, kw_only=True)


def rows(settings: Settings) -> list[str]:
    """The table of docs/reference/builder-settings.md."""
    head = ["option", "recipe key", "range", "decides which tactics compete", "available in", "meaning"]
    lines = [head, ["---"] * len(head)]
    for one in settings:
        value = "|".join(one.choices).replace("|", "\\|") or one.metavar or ("N" if one.range else "")
        taken = f" {value}" if value else ""
        span = f"{one.range[0]} to {one.range[1]}" if one.range else ""
        decides = "yes" if one.decides_tactics else ""
        lines.append([f"`{one.flag}{taken}`", f"`{one.name}`", span, decides, one.available, one.help])
    return [f"| {' | '.join(line)} |" for line in lines]


def test_the_page_of_settings_says_what_is_declared() -> None:
    table = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
    assert table == rows(SETTINGS), "put these rows into the page"


def test_the_records_have_a_field_for_each_setting_and_no_other() -> None:
    assert {one.name for one in SETTINGS} | FIXED | TYPED | WHERE | SHAPES == {*Recipe.__struct_fields__}
    assert {one.recorded for one in SETTINGS} == {*BuildSettings.__struct_fields__}
    deciding = {one.recorded for one in SETTINGS if one.decides_tactics}
    assert deciding == {*CacheTerms.__struct_fields__}


def test_a_setting_that_is_declared_becomes_an_option_with_its_help() -> None:
    @dataclass(frozen=True)
    class Request:
        streams_beside: STREAMS_BESIDE = None  # type: ignore[valid-type]

    command = click.Command("build", params=parameters_of(Request, ()))
    context = click.Context(command)
    assert MADE_UP.flag in command.get_help(context)
    assert MADE_UP.help in command.get_help(context)
    assert command.make_context("build", [MADE_UP.flag, "3"]).params == {MADE_UP.name: 3}
    assert command.make_context("build", []).params == {MADE_UP.name: None}


def test_a_setting_that_is_declared_has_its_range_judged() -> None:
    check_values(MadeUpRecipe(streams_beside=7), [DECLARED])
    with pytest.raises(UsageError, match="--streams-beside 8: out of range"):
        check_values(MadeUpRecipe(streams_beside=8), [DECLARED])


def test_a_setting_that_is_declared_is_recorded_applied_and_keeps_caches_apart() -> None:
    recorded = recorded_settings(MadeUpRecipe(streams_beside=2, opt_level=4), MadeUpRecord, WITH_MADE_UP)
    assert msgspec.json.decode(msgspec.json.encode(recorded))["streams_beside"] == 2
    applied = plain_attributes(Backend(name="tensorrt", version="8.6.1"), WITH_MADE_UP)
    assert {name: getattr(recorded, one.recorded) for name, one in applied.items()} == {
        "builder_optimization_level": 4,
        "max_aux_streams": 2,
    }
    ours = Backend(name="onnxruntime", version="1")
    with pytest.raises(UsageError, match="--streams-beside: onnxruntime 1 has no such setting") as refused:
        check_backend(MadeUpRecord(streams_beside=2), ours, WITH_MADE_UP)
    assert "--backend tensorrt" in refused.value.remedy
    check_backend(MadeUpRecord(intra_op_threads=2), ours, WITH_MADE_UP)
    other = recorded_settings(MadeUpRecipe(streams_beside=1, opt_level=4), MadeUpRecord, WITH_MADE_UP)
    terms = [cache_terms(one, MadeUpTerms, WITH_MADE_UP) for one in (recorded, other, recorded)]
    assert terms[0] == terms[2] != terms[1]


@pytest.mark.parametrize(
    ("version", "lacking"),
    [
        ("8.6.1", {"reproducible", "tiling", "l2_limit_mib", "build_route", "compute_capability"}),
        ("10.8.0", {"build_route", "compute_capability"}),
        ("11.1.0", {"compute_capability"}),
    ],
)
def test_a_version_lacks_what_the_table_of_targets_says(version: str, lacking: set[str]) -> None:
    backend = Backend(name="tensorrt", version=version)
    of_tensorrt = [one for one in SETTINGS if one.backends != ("onnxruntime",)]
    assert {one.name for one in of_tensorrt if not one.is_of(backend)} == lacking
    recorded = recorded_settings(Recipe(tiling="full"), BuildSettings)
    if "tiling" in lacking:
        with pytest.raises(UsageError, match=r"--tiling: .* \(TensorRT 10.8 and newer has\)"):
            check_backend(recorded, backend)
    else:
        check_backend(recorded, backend)


def test_a_setting_that_is_declared_asks_for_its_row_in_the_page() -> None:
    assert rows(WITH_MADE_UP)[-1].startswith(
        "| `--streams-beside N` | `streams_beside` | 0 to 7 | yes | TensorRT 8.6 and newer |"
    )


def test_records_of_settings_are_as_they_were() -> None:
    """Manifests hold them, and the caches of the store are named by a hash of their terms."""
    recipe = Recipe(opt_level=3, workspace_mib=64, tactic_sources=("CUBLAS",), reproducible=True)
    recorded = recorded_settings(recipe, BuildSettings)
    assert msgspec.json.encode(recorded) == (
        b'{"opt_level":3,"tactic_sources":["CUBLAS"],"reproducible":true,"aux_streams":null,"avg_timing":null,'
        b'"tiling":null,"build_route":null,'
        b'"graph_optimization":null,"intra_op_threads":null,"execution_mode":null,'
        b'"workspace_bytes":67108864,"compute_capabilities":[],"plugins":[],"l2_limit_bytes":null}'
    )
    assert msgspec.json.encode(cache_terms(recorded, CacheTerms)) == (
        b'{"opt_level":3,"workspace_bytes":67108864,"tactic_sources":["CUBLAS"],"plugins":[],"tiling":null,'
        b'"l2_limit_bytes":null,"build_route":null}'
    )
