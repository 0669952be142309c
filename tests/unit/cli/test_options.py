"""Options as typed: one spelling everywhere, the older ones still understood, closed sets offered."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import CompletionItem
from click.testing import CliRunner

from trtopt.cli.main import COMMANDS, cli
from trtopt.cli.outputs import JsonOutput
from trtopt.errors import OutputError, UsageError
from trtopt.recipe import GRAPH_PRECISIONS
from trtopt.targets import BACKENDS


def command(name: str) -> click.Command:
    found = cli
    for part in name.split():
        inner = found.get_command(click.Context(found), part) if isinstance(found, click.Group) else None
        assert inner is not None
        found = inner  # type: ignore[assignment]
    return found


def parsed(name: str, *line: str) -> dict[str, Any]:
    """The values that a command line gives."""
    return dict(command(name).make_context(name, list(line)).params)


def offered(name: str, option: str, begun: str = "") -> list[str]:
    """What a shell offers for the value of an option; files as `file`."""
    found = command(name)
    context = click.Context(found, resilient_parsing=True)
    parameter = next(one for one in found.params if option in (*one.opts, one.name))
    items: list[CompletionItem] = parameter.shell_complete(context, begun)
    return [str(item.value) if item.type == "plain" else item.type for item in items]


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "m.onnx").touch()
    return str(tmp_path / "m.onnx")


# ── one spelling ────────────────────────────────────────────────────────────────────────────────────────


SAMPLES = (
    "build",
    "bench",
    "profile",
    "explain",
    "compare",
    "check",
    "sweep",
    "quantize",
    "bisect",
    "reduce",
    "cast",
    "rewrite",
)
HELP = {name: CliRunner().invoke(command(name), ["--help-all"]).output for name in COMMANDS}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_data_everywhere(name: str) -> None:
    assert "--data DATA" in HELP[name]
    assert "--input" not in HELP[name]
    assert name == "bisect" or "--calib" not in HELP[name]


@pytest.mark.parametrize("name", ["build", "sweep", "bisect", "reduce"])
def test_recipes_are_recipes_everywhere(name: str) -> None:
    assert "--recipe NAME|FILE" in HELP[name]
    assert "--profile" not in HELP[name]


@pytest.mark.parametrize("name", ["build", "bench", "profile", "explain", "compare", "check"])
def test_shapes_and_axes_can_be_given_where_engines_are_built_or_run(name: str) -> None:
    assert "--shape INPUT:MIN,OPT,MAX" in HELP[name]
    assert "--axis NAME=MIN,OPT,MAX" in HELP[name]


@pytest.mark.parametrize("name", [*SAMPLES, "plan", "lint", "verify", "doctor", "cache ls"])
def test_json_goes_to_a_file_or_to_standard_output(name: str) -> None:
    options = [one for one in command(name).params if "--json" in one.opts]
    assert [one.metavar for one in options] == ["FILE|-"]


@pytest.mark.parametrize("share", ["100%", "0.001%", "5", "nan", "five"])
def test_a_share_is_answered_in_percent_too(share: str, model: str) -> None:
    with pytest.raises(UsageError) as error:
        parsed("compare", model, model, "--threshold", share)
    assert f"--threshold {share}" in error.value.problem
    assert "99.99%" in error.value.problem


@pytest.mark.parametrize(("name", "parameter"), [("rewrite", "check"), ("cast", "compare")])
def test_what_a_flag_turns_off_is_on_without_it(name: str, parameter: str, model: str) -> None:
    """Whatever click makes of a flag's value and its default, which differs between versions."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    flag = next(one for one in command.params if one.name == parameter)
    assert isinstance(flag, click.Option)
    assert flag.flag_value is not False
    line = [model, "-o", "out.onnx"]
    assert parsed(name, *line)[parameter] is True
    assert parsed(name, *line, f"--no-{parameter}")[parameter] is False


def test_an_empty_name_stays_for_the_check_that_refuses_it(model: str) -> None:
    assert parsed("sweep", model, "--precision", "")["precision"] == ("",)
    assert parsed("build", model, "--tactic-sources", "CUBLAS,")["tactic_sources"] == ("CUBLAS", "")
    with pytest.raises(UsageError):
        parsed("bench", model, "--lock-clocks", "")
    assert parsed("bench", model, "--lock-clocks")["lock_clocks"] is True


def test_a_sweep_takes_lengths_and_a_build_a_range(model: str) -> None:
    assert parsed("sweep", model, "--axis", "seq=64,16,32")["axes"] == {"seq": (64, 16, 32)}
    assert parsed("sweep", model, "--axis", "seq=16")["axes"] == {"seq": (16,)}
    build = parsed("bench", model, "--axis", "seq=1,128,512", "--axis", "past + 1=17")
    assert build["axes"] == {"seq": (1, 128, 512), "past + 1": (17,)}


@pytest.mark.parametrize(("option", "field"), [("--batch", "batch"), ("--streams", "streams")])
def test_sizes_are_sorted_and_none_is_taken_twice(option: str, field: str, model: str) -> None:
    assert parsed("sweep", model, option, "4,1,4")[field] == (1, 4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--axis", "seq"], "--axis 'seq': expected NAME=MIN,OPT,MAX or NAME=N"),
        (["--axis", "seq=0"], "--axis seq='0': lengths of an axis are whole numbers"),
        (["--axis", "seq=1", "--axis", "seq=2"], "--axis seq: given twice"),
        (["--shape", "x:N", "--shape", "x:N"], "--shape x: given twice"),
    ],
)
def test_a_malformed_size_is_refused(given: list[str], message: str, model: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed("bench", model, *given)
    assert message in caught.value.problem


# ── --json ──────────────────────────────────────────────────────────────────────────────────────────────


def test_json_is_a_file_or_standard_output(model: str, tmp_path: Path) -> None:
    assert parsed("lint", model, "--json", "-")["json"] == JsonOutput(None, "trtopt.lint")
    file = tmp_path / "r.json"
    assert parsed("lint", model, "--json", str(file))["json"] == JsonOutput(file, "trtopt.lint")
    assert parsed("lint", model)["json"] is None


@pytest.mark.parametrize("line", [["{model}", "--json"], ["--json", "{model}"], ["{model}", "--json", "-v"]])
def test_the_flag_that_json_was_is_answered_with_what_to_write(line: list[str], model: str) -> None:
    with pytest.raises(click.UsageError, match="or - for standard output"):
        parsed("lint", *(part.format(model=model) for part in line))
    assert Path(model).read_bytes() == b""


def test_a_file_that_cannot_be_written_is_refused_before_the_work(model: str) -> None:
    done = CliRunner().invoke(command("lint"), [model, "--json", "/proc/nowhere/r.json"])
    assert isinstance(done.exception, OutputError)


def test_the_trace_of_a_command_is_written_to_the_file_and_shown_too(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    CliRunner().invoke(command("rewrite"), ["--list", "--json", str(file)])
    assert any(rule["name"] == "softmax" for rule in json.loads(file.read_text()))


# ── what a shell offers ─────────────────────────────────────────────────────────────────────────────────


def test_closed_sets_are_choices_or_are_offered() -> None:
    assert offered("bench", "--backend") == ["auto", *BACKENDS]
    assert offered("bench", "--contract", "trt") == ["trtexec-10", "trtexec-11"]
    assert offered("build", "--recipe", "qu") == ["quick", "file"]
    assert offered("quantize", "--method", "e") == ["entropy"]
    assert offered("quantize", "--precision") == ["int8", "fp8", "int4"]
    assert offered("rewrite", "--rules", "sigmoid,softm") == ["sigmoid,softmax"]
    assert offered("sweep", "--precision", "fp16,") == [f"fp16,{name}" for name in GRAPH_PRECISIONS]
    assert offered("export", "model", "resnet5") == ["resnet50", "file"]
    assert "any" in offered("lint", "--fail-on")
    assert offered("bench", "--data") == offered("bench", "path") == offered("bench", "--json") == ["file"]


@pytest.mark.parametrize(
    ("name", "flag"), [("build", "--cache-dir"), ("build", "--data"), ("export", "--checkpoint")]
)
def test_a_shell_offers_paths_where_one_is_named(name: str, flag: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    option = next(one for one in command.params if flag in one.opts)
    assert [item.type for item in option.shell_complete(click.Context(command), "")] == ["file"]


# ── exit codes ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "line",
    [
        *([name, "nowhere"] for name in ("build", "bench", "profile", "lint", "verify", "report", "sweep")),
        ["compare", "nowhere", "there"],
        ["cast", "nowhere", "-o", "x.onnx"],
        ["bench", "{model}", "--data", "nowhere.npz"],
        ["bench", "{npz}"],
        ["verify", "{folder}"],
        ["report", "{folder}"],
        ["lint", "{folder}"],
    ],
    ids=" ".join,
)
def test_a_wrong_path_is_wrong_usage(line: list[str], model: str, tmp_path: Path) -> None:
    (tmp_path / "x.npz").touch()
    places = {"model": model, "npz": str(tmp_path / "x.npz"), "folder": str(tmp_path)}
    done = CliRunner().invoke(cli, [part.format(**places) for part in line])
    assert getattr(done.exception, "exit_code", done.exit_code) == 2, done.output
    assert not isinstance(done.exception, (AttributeError, TypeError))


def test_help_starts_without_reading_any_table() -> None:
    """A shell asks for the names; the help of a command must not import what holds them."""
    program = (
        "import sys; sys.argv = ['trtopt', 'quantize', '--help']\n"
        "from trtopt.cli.main import main\n"
        "tables = ('trtopt.rewrite', 'trtopt.precision.calibrate', 'trtopt.export')\n"
        "try: main()\n"
        "finally: print([one for one in sys.modules if one.startswith(tables)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.splitlines()[-1] == "[]"


# ── closed choices ──────────────────────────────────────────────────────────────────────────────────────


def test_choices_and_names_are_taken_in_any_case(model: str) -> None:
    assert parsed("build", model, "--precision", "INT8", "--backend", "TensorRT-RTX") == (
        parsed("build", model, "--precision", "int8", "--backend", "tensorrt-rtx")
    )
    swept = parsed("sweep", model, "--precision", "FP16,Int8", "--contract", "SERVING")
    assert (swept["precision"], swept["contract"]) == (("fp16", "int8"), "serving")
    assert parsed("build", model, "--recipe", "QUICK")["profile"] == "QUICK"  # perhaps a file
