"""Command lines of Polygraphy as command lines of trtopt."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings, strategies as st
from polygraphy.tools.registry import TOOL_REGISTRY

from tests.support.paths import ROOT
from tests.support.peers import assert_options_are_known, dropped_without_a_word
from trtopt.errors import UsageError
from trtopt.peers.options import PeerOption
from trtopt.peers.polygraphy import OPTIONS, TOOLS, translate

TRANSLATED = [tool for tool, row in TOOLS.items() if row.kind == "translated"]
OF_RTX = {"--use-gpu", "--compute-capabilities"}
"""Which Polygraphy has only where it is told to use TensorRT-RTX."""
Signature = tuple[frozenset[str], str]
"""The names of an option, and how many values it takes."""


def installed() -> dict[str, argparse.ArgumentParser]:
    """The parser of every tool of the installed Polygraphy."""
    root = argparse.ArgumentParser()
    tools = root.add_subparsers()
    for tool in TOOL_REGISTRY:
        tool.setup_parser(tools)
    return dict(_leaves(root))


def _leaves(parser: argparse.ArgumentParser, *path: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not inner:
        yield " ".join(path), parser
    for name, below in inner[0].choices.items() if inner else ():
        yield from _leaves(below, *path, name)


INSTALLED = installed()


def rows_of(tool: str) -> list[PeerOption]:
    return [option for option in OPTIONS if {tool, "all"} & {*option.found_in}]


def signature(option: PeerOption) -> Signature:
    return frozenset(option.names), str({0: 0, None: 1}.get(option.count, option.count))


def test_every_tool_of_the_installed_version_has_a_row() -> None:
    assert INSTALLED.keys() - TOOLS.keys() == set()
    assert [tool for tool, row in TOOLS.items() if row.kind == "refused" and not row.note] == []


@pytest.mark.parametrize("tool", TRANSLATED)
def test_every_option_of_the_installed_version_has_a_row(tool: str) -> None:
    own = {
        (frozenset(one.option_strings), str({None: 1}.get(one.nargs, one.nargs)))
        for one in INSTALLED[tool]._actions
        if one.option_strings
    }
    missing = {names for names, _ in own - {*map(signature, rows_of(tool))}}
    assert [sorted(names) for names in missing] == []


@pytest.mark.parametrize("tool", TRANSLATED)
def test_every_option_of_the_versions_has_a_row_and_each_row_an_option(tool: str) -> None:
    own: dict[frozenset[str], set[str]] = {}
    for line in (ROOT / "tests/data/polygraphy/options.txt").read_text("utf-8").splitlines():
        option, _, found_in = line.partition(" | ")
        if not line.startswith("#") and tool in found_in.split(" | ")[0].split(", "):
            names, count = option.split()
            own.setdefault(frozenset(names.split(",")), set()).add(count)
    rows = dict(map(signature, rows_of(tool)))
    lacking = [sorted(names) for names, counts in own.items() if not _is_in(names, counts, rows)]
    strange = [sorted(names) for names in rows if not any(names >= one for one in own) and not names & OF_RTX]
    assert (lacking, strange) == ([], [])


def _is_in(names: frozenset[str], counts: set[str], rows: dict[frozenset[str], str]) -> bool:
    """An option that once took one value and now takes several is one that takes several."""
    found = [count for own, count in rows.items() if own >= names]
    return bool(found) and (found[0] in counts or (counts <= {"1", "+"} and found[0] in "+*"))


def test_an_option_without_effect_or_refused_says_why() -> None:
    assert [option.name for option in OPTIONS if option.kind != "translated" and not option.note] == []


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (
            "run m.onnx --trt --onnxrt",
            ["build m.onnx", "check m.trtopt --against m.onnx --max-error 1e-05"],
        ),
        (
            "run --trt --onnxrt --fp16 m.onnx --save-engine out/e.plan --atol 1e-3 --load-inputs d.json",
            [
                "build m.onnx -o out/e.trtopt --precision fp16 --data d.json",
                "check out/e.trtopt --against m.onnx --data d.json --max-error 1e-3",
            ],
        ),
        (
            "run m.onnx --trt --onnxrt --compare simple cosine_similarity snr --snr-threshold 30",
            [
                "build m.onnx",
                "check m.trtopt --against m.onnx --max-error 1e-05 --min-cosine 0.997 --min-sqnr 30",
            ],
        ),
        ("run m.onnx --trt", ["build m.onnx", "bench m.trtopt"]),
        ("run m.onnx --trt --validate", ["build m.onnx", "check m.trtopt --against m.onnx --min-cosine -1"]),
        (
            "run m.onnx --onnxrt --input-shapes x:[4,3]",
            ["bench m.onnx --backend onnxruntime --batch 4 --shape x:Nx3"],
        ),
        (
            "run e.engine --trt --inputs x:[4,3] --plugins a.so b.so",
            ["bench e.engine --trust e.engine --batch 4 --shape x:Nx3 --trust a.so --trust b.so"],
        ),
        ("run e.bin --model-type engine --trt", ["bench e.bin --trust e.bin"]),
        (
            "convert m.onnx -o out/e.engine --int8 --fp16 --data-loader-script load.py:feed",
            ["build m.onnx -o out/e.trtopt --precision int8 --data load.py:feed"],
        ),
        (
            "convert m.onnx --convert-to trt -o e --data-loader-script load.py --fp8",
            ["build m.onnx -o e.trtopt --precision fp8 --data load.py:load_data"],
        ),
        ("convert m.onnx -o half.onnx --fp-to-fp16", ["cast m.onnx -o half.onnx"]),
        ("convert m.onnx -o half.engine --fp-to-fp16", ["build m.onnx -o half.trtopt --precision fp16"]),
        (
            "convert m.onnx -o e.engine --int8 --fp-to-fp16 --load-inputs d.npz",
            ["build m.onnx -o e.trtopt --precision int8 --data d.npz"],
        ),
        (
            "convert m.onnx -o e.engine --fp16 --load-inputs d.npz",  # its values decide what stays FP32
            ["build m.onnx -o e.trtopt --precision fp16 --data d.npz"],
        ),
        (
            "convert m.onnx -o e.engine "
            "--trt-min-shapes x:[1,8] --trt-opt-shapes x:[4,16] --trt-max-shapes x:[8,32]",
            ["build m.onnx -o e.trtopt --dynamic --batch 1,4,8 --shape x:Nx8,Nx16,Nx32"],
        ),
        (
            "run m.onnx --trt --input-shapes x:[2,3,8] mask:[2,8] --trt-max-shapes x:[4,3,8] mask:[4,8]",
            [
                "build m.onnx --dynamic --batch 2,2,4 --shape x:Nx3x8 --shape mask:Nx8",
                "bench m.trtopt --batch 2",
            ],
        ),
        (
            "convert m.onnx -o e.engine "
            "--trt-min-shapes x:[1,8] --trt-opt-shapes x:[1,8] --trt-max-shapes x:[4,8] "
            "--trt-min-shapes x:[8,8] --trt-opt-shapes x:[16,8] --trt-max-shapes x:[32,8]",
            ["build m.onnx -o e.trtopt --dynamic --batch 1,1,4 --batch 8,16,32 --shape x:Nx8"],
        ),
        (
            "convert m.onnx -o e.engine --pool-limit workspace:1.5G --builder-opt 3 "
            "--tactic-sources cublas_lt jit_convolutions --tiling-optimization-level FAST "
            "--compute-capabilities 8.6 8.9 -vv",
            [
                "build m.onnx -o e.trtopt --workspace 1536 --opt-level 3 --tactic-sources "
                "CUBLAS_LT,JIT_CONVOLUTIONS --tiling fast --compute-capability 8.6,8.9 -v -v"
            ],
        ),
        (
            "convert m.onnx -o e.engine --load-timing-cache c --save-timing-cache c "
            "--error-on-timing-cache-miss",
            ["build m.onnx -o e.trtopt --timing-cache c --reproducible"],
        ),
        (
            "surgeon sanitize m.onnx --fold-constants --cleanup -o o.onnx",
            ["rewrite m.onnx -o o.onnx --rules fold-shapes,fold-constants,drop-dead"],
        ),
        (
            "surgeon sanitize m.onnx --fold-constants --no-fold-shapes -o o.onnx --log-file l",
            ["rewrite m.onnx -o o.onnx --rules fold-constants,drop-dead --log-file l"],
        ),
        (
            "surgeon sanitize m.onnx --override-input-shapes x:[1,3,8] mask:[4] -o o.onnx",
            ["rewrite m.onnx -o o.onnx --rules drop-dead --shape x:1x3x8 --shape mask:4"],
        ),
        ("inspect model m.onnx --show layers -v", ["inspect m.onnx -v"]),
        (
            "surgeon extract m.onnx --inputs a:0:auto:auto b:[1,3]:float32 --outputs c:auto -o o.onnx",
            ["extract m.onnx -o o.onnx --from a:0 --from b --to c"],
        ),
        (
            "debug reduce m.onnx -o o.onnx --load-inputs d.npz "
            "--check polygraphy run polygraphy_debug.onnx -v",
            ["reduce m.onnx -o o.onnx --while 'polygraphy run {model} -v' --data d.npz"],
        ),
        (
            "debug reduce m.onnx -o o.onnx --check run polygraphy_debug.onnx --s",  # not read as an option
            ["reduce m.onnx -o o.onnx --while 'run {model} --s'"],
        ),
        (
            "debug reduce m.onnx -o o.onnx --iter-artifact a/x.onnx --check run ./a/x.onnx --m=a/x.onnx",
            ["reduce m.onnx -o o.onnx --while 'run {model} --m={model}'"],
        ),
        ("inspect capability m.onnx --with-part", ["inspect m.onnx --capability 10"]),
        ("inspect model m.engine", ["inspect m.engine --trust m.engine"]),
        ("convert m.onnx -o e.engine --save-external-data", ["build m.onnx -o e.trtopt"]),
        ("check lint m.onnx -o o.json", ["lint m.onnx --json o.json"]),
    ],
)
def test_a_command_line_is_translated(given: str, lines: list[str]) -> None:
    found = translate(given.split())
    assert list(found.lines) == [f"trtopt {line}" for line in lines]
    for command in found.commands:
        assert_options_are_known(command)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("debug precision m.onnx --check true", "debug precision"),
        ("surgeo sanitize m.onnx", "surgeon sanitize"),
        ("inspect", "inspect tactics"),
        ("frobnicate", "convert"),
        ("run m.onnx", "--trt"),
        ("run --trt", "MODEL"),
        ("run m.onnx n.onnx --trt", "n.onnx"),
        ("run m.onnx --trt --refittable --use-dla", "--refittable, --use-dla"),
        ("run m.onnx --trt --warmpu 3", "--warm-up"),
        ("run m.onnx --trt --warm-up", "--warm-up=N"),
        ("run m.onnx --trt --trt-o", "--trt-opt-shapes"),
        ("run m.onnx --trt --print", "those of trtopt go before"),
        ("run m.onnx --trt --onnxrt --atol out:1e-3", "--atol"),
        ("run m.onnx --trt --onnxrt --atol 1e-3 out:1e-2", "--atol"),
        ("run m.onnx --trt --onnxrt --compare psnr", "psnr"),
        ("run m.onnx --trt --load-inputs a.json b.json", "--load-inputs"),
        ("run m.pb --trt", "m.pb"),
        ("run m.onnx --model-type keras --trt", "--model-type"),
        ("run m.engine --trt --onnxrt", "--onnxrt"),
        ("run m.onnx --onnxrt --validate", "--validate"),
        ("run m.onnx --onnxrt --plugins p.so", "--plugins"),
        ("run e.trt --trt", "--model-type engine"),
        ("run m.onnx --trt --pool-limit dla_sram:1M", "--pool-limit"),
        ("run m.onnx --trt --tactic-sources", "--tactic-sources"),
        ("run m.onnx --trt --trt-min-shapes x:[1,2]", "--trt-min-shapes"),
        ("run m.onnx --trt --input-shapes x:[n,2]", "x:[n,2]"),
        ("convert m.onnx", "-o"),
        ("surgeon extract m.onnx -o o.onnx --inputs a", "--inputs a:auto:auto"),
        ("debug reduce m.onnx -o o.onnx --check true", "polygraphy_debug.onnx"),
        ("convert m.onnx --convert-to trt -o .", "names no file"),
        ("convert m.onnx -o n.onnx", "--fp-to-fp16"),
        ("convert m.engine -o n.engine", "m.engine"),
        ("convert m.onnx -o e.engine --load-timing-cache a --save-timing-cache b", "--load-timing-cache"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_name(given: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        translate(given.split())
    assert named in f"{caught.value.problem} {caught.value.remedy}"
    assert caught.value.remedy


EXAMPLES = {
    "CC…": ["8.9"],
    "FILE.py:NAME": ["f.py:g"],
    "NAME:SHAPE…": ["x:[8,3]"],
    "POOL:SIZE…": ["workspace:1G"],
    "NUMBER…": ["0.5"],
    "N": ["2"],
}
SPECIFIC = {
    "--compare": ["cosine_similarity"],
    "--model-type": ["keras"],
    "--convert-to": ["onnx-like-trt-network"],
    "--tactic-sources": ["cublas"],
    "--input-shapes": ["x:[2,3]"],
}
BASES = {
    "run": [
        "run m.onnx --trt --onnxrt --input-shapes x:[4,3]",
        "run m.onnx --onnxrt",
        "run m.engine --trt",
        "run m.onnx --trt --data-loader-script a.py",
    ],
    "convert": ["convert m.onnx -o e.engine --input-shapes x:[4,3]", "convert m.onnx -o h.onnx --fp-to-fp16"],
    "surgeon sanitize": [
        "surgeon sanitize m.onnx -o o.onnx",
        "surgeon sanitize m.onnx -o o.onnx --fold-constants",
    ],
    "check lint": ["check lint m.onnx"],
    "surgeon extract": ["surgeon extract m.onnx -o o.onnx"],
    "debug reduce": ["debug reduce m.onnx -o o.onnx --check run polygraphy_debug.onnx"],
    "inspect capability": ["inspect capability m.onnx"],
    "inspect model": ["inspect model m.onnx", "inspect model m.engine"],
}


def example(option: PeerOption) -> list[str]:
    """The option with a value."""
    values = SPECIFIC.get(option.name) or EXAMPLES.get(option.value, ["f"])
    return [option.name, *(values if option.value else [])]


@pytest.mark.parametrize("base", [base for bases in BASES.values() for base in bases])
def test_no_option_is_dropped_without_a_word(base: str) -> None:
    words = base.split()
    tool = next(tool for tool in BASES if base.startswith(tool))
    added = [example(one) for one in rows_of(tool) if one.name not in {*words, "--help", "-h"}]
    assert dropped_without_a_word(translate, words, added) == []


def test_every_translated_tool_has_a_line() -> None:
    assert BASES.keys() == {*TRANSLATED}


@given(data=st.data())
@settings(deadline=None)
def test_any_line_is_translated_or_refused_and_what_it_becomes_is_read(data: st.DataObject) -> None:
    tool = data.draw(st.sampled_from(TRANSLATED))
    texts = st.sampled_from(
        ["m.onnx", "e.engine", "x:[1,2]", "x:[1,2,3]", "x:[]", "1e-3", "2", "onnx", "-1", "", ".", "simple"]
    )
    words = [tool.split(), data.draw(st.lists(texts, max_size=2))]
    for option in data.draw(st.lists(st.sampled_from(rows_of(tool)), max_size=6)):
        values = data.draw(st.lists(texts, max_size=3))
        words.append([data.draw(st.sampled_from(option.names)), *(values if option.value else [])])
    with suppress(UsageError):
        for command in translate([word for part in words for word in part]).commands:
            assert_options_are_known(command)
