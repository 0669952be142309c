"""A guess is answered with the line to paste."""

from __future__ import annotations

import shlex

import click
import pytest
from hypothesis import given, strategies as st

from trtopt.cli import corrections
from trtopt.cli.command import Command
from trtopt.cli.corrections import corrected
from trtopt.cli.main import COMMANDS, cli
from trtopt.peers import polygraphy, trtexec

FLAGS = {flag for command in COMMANDS.values() for one in command.params for flag in one.opts}


def answer(*words: str) -> str:
    """What a line without its files, which names no command or option as it should, is answered with."""
    with pytest.raises(click.UsageError) as caught:
        cli.main([*words], prog_name="trtopt", standalone_mode=False)
    return corrected(caught.value).format_message()


def written(text: str) -> list[str]:
    return [line.removeprefix("Write: ") for line in text.splitlines() if line.startswith("Write: ")]


@pytest.mark.parametrize(
    ("guess", "line"),
    [
        ("check A --reference B", "check A --against B"),
        ("check A --golden=B --atol 1e-3", "check A --against B --max-error 1e-3"),
        ("bench --loadEngine=A --warmUp=200 --iterations 5", "bench A --warmup 0.2"),
        ("bench A --useCudaGraph", "bench A --graph"),
        ("bench A -n 100 -b 8", "bench A --batch 8"),
        ("compare A --against B", "compare A B"),
        ("compare A B -b 8", "compare A B --batch 8"),
        ("explain A --baseline=B", "explain A B"),
        ("build --onnx m.onnx --fp16 --output-dir e", "build m.onnx --precision fp16 -o e"),
        ("build m.onnx --batchSize=8", "build m.onnx --batch 8"),
        ("cast m.onnx -o o.onnx --fp16", "cast m.onnx -o o.onnx --precision fp16"),
        ("convert m.onnx --int8 --calib d.npz", "build m.onnx --precision int8 --data d.npz"),
        ("--json - -v build m.onnx", "build m.onnx --json - -v"),
        ("BUILD m.onnx", "build m.onnx"),
        ("infer m.onnx --input_shapes x:Nx3", "bench m.onnx --shape x:Nx3"),
        ("m.onnx --batch 1", "optimize m.onnx --batch 1"),
        ("quantise 'a b.onnx' -o q.onnx", "quantize 'a b.onnx' -o q.onnx --precision int8"),
        ("info m.onnx", "inspect m.onnx"),
        ("tune m.onnx --time 10m", "tune m.onnx --budget 10m"),
        ("diff a.onnx b.onnx --html d.html", "diff a.onnx b.onnx -o d.html"),
        ("deploy g", "deploy triton g -o models"),
        ("deploy g -o m", "deploy triton g -o m"),
        ("plan s -o p --slo p99=9ms --for triton", "plan s -o p --slo p99=9ms --for-triton"),
        ("plan s -o p --slo p99=9ms --for=triton", "plan s -o p --slo p99=9ms --for-triton"),
        ("triton g", "deploy triton g -o models"),
        ("deploy tritn g --name n", "deploy triton g --name n -o models"),
        ("optimize m.onnx --latency 10ms", "optimize m.onnx --slo p99=10ms"),
        ("bench m.onnx --max-p99=5ms", "bench m.onnx --max-latency p99=5ms"),
        ("optimize m.onnx --precision fp16", "build m.onnx --precision fp16"),
    ],
)
def test_a_guess_is_answered_with_the_line_that_was_meant(guess: str, line: str) -> None:
    assert written(answer(*shlex.split(guess))) == [f"trtopt {line}"]


@pytest.mark.parametrize(
    ("guess", "lines"),
    [
        ("check m.onnx B", ["check m.onnx --against B"]),
        ("bench m.onnx B C --batch 8", ["compare m.onnx --batch 8 B", "compare m.onnx --batch 8 C"]),
        ("bench m.onnx m.onnx", ["compare m.onnx m.onnx"]),
        ("bench m.onnx --bs 1 8", ["bench m.onnx --batch 1,8"]),
        ("bench m.onnx B --batch 1 8", ["compare m.onnx --batch 1,8 B"]),
        ("build m.onnx out", ["build m.onnx -o out"]),
        ("sweep m.onnx n.onnx", []),
        ("build m.onnx --batch 1 4 8", ["build m.onnx --batch 1,4,8"]),
        ("sweep m.onnx --batch 1 4 8", ["sweep m.onnx --batch 1,4,8"]),
        ("sweep m.onnx --batch-sizes 1 4 -o s", ["sweep m.onnx --batch 1,4 -o s"]),
        ("cast m.onnx out.onnx", ["cast m.onnx -o out.onnx"]),
        ("cast m.onnx --fp16", ["cast m.onnx --precision fp16 -o m-cast.onnx"]),
        ("cast m.onnx -o i.onnx --int8", ["quantize m.onnx -o i.onnx --precision int8"]),
        ("cast m.onnx -o i.onnx --precision INT8", ["quantize m.onnx -o i.onnx --precision INT8"]),
        ("quantize m.onnx -o h.onnx --precision=bf16", ["cast m.onnx -o h.onnx --precision=bf16"]),
        ("quantize m.onnx", ["quantize m.onnx -o m-quantize.onnx --precision int8"]),
        ("plan m.onnx", ["plan m.onnx -o plan.json --slo p99=10ms"]),
        ("reduce m.onnx", ["reduce m.onnx -o m-reduce.onnx --while wrong"]),
        ("deploy triton m.onnx", ["deploy triton m.onnx -o models"]),
        ("optimize m.onnx d.npz", ["optimize m.onnx --data d.npz"]),
        ("quantize m.onnx out.onnx", ["quantize m.onnx -o out.onnx --precision int8"]),
    ],
)
def test_an_argument_too_many_is_answered_with_its_option(
    guess: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("models")
    (folder / "m.onnx").touch()
    monkeypatch.chdir(folder)
    assert written(answer(*guess.split())) == [f"trtopt {line}" for line in lines]


@pytest.mark.parametrize(
    "guess",
    [
        "bench m.onnx --loadInputs=x:a.bin",
        "serve",
        "serve m.onnx",
        "deploy triton",
        "plan",
        "cast",
        "history ad x",
        "plan s -o p --slo p99=9ms --for sagemaker",
        "plan s -o p --slo p99=9ms --for",
    ],
)
def test_what_cannot_be_meant_is_answered_with_no_line(guess: str) -> None:
    assert not written(answer(*guess.split()))


def test_an_option_of_another_command_names_that() -> None:
    assert "trtopt optimize, plan." in answer("sweep", "m.onnx", "--slo", "p99=10ms")
    assert "trtopt" not in answer("sweep", "m.onnx", "--nothing").partition("Error")[2]


def test_the_tables_name_what_exists() -> None:
    assert corrections._OPTIONS.keys() <= FLAGS
    leaves = [one for one in COMMANDS.values() if isinstance(one, Command)]
    synonyms = [name for one in COMMANDS.values() for name in getattr(one, "synonyms", ())]
    assert len({*synonyms}) == len(synonyms)
    assert COMMANDS.keys().isdisjoint(synonyms)
    assert {one.more_precisions for one in leaves} <= {None, *COMMANDS}


WORDS = st.sampled_from(
    [
        *("m.onnx", "B", "d.npz", "8", "", "-", "--", "-b8", "-o", "--batch", "--batch=8", "--x=", "--fp16"),
        *(f"--{name}" for names in corrections._OPTIONS.values() for name in names.split()),
        *sorted(FLAGS - {"-h", "--help", "--help-all"}),
        *(
            f"{name}{value}"
            for one in (*trtexec.OPTIONS, *polygraphy.OPTIONS)
            for name in one.names
            for value in ("", "=1", "=abc")
        ),
    ]
)


@given(st.sampled_from([*COMMANDS, "convert", "infer"]), st.lists(WORDS, max_size=6))
def test_every_line_that_is_written_names_commands_options_and_arguments_that_exist(
    name: str, rest: list[str]
) -> None:
    root = click.Context(cli, info_name="trtopt")
    root.meta[corrections.WORDS] = [name, *rest]
    try:
        found, command, words = cli.resolve_command(root, [name, *rest])
        assert command is not None
        context = click.Context(command, parent=root, info_name=found, **command.context_settings)
        command.parse_args(context, words)
    except click.UsageError as error:
        for line in written(corrected(error).format_message()):
            _, own, *given_words = shlex.split(line)
            meant = COMMANDS[own]
            if isinstance(meant, click.Group):
                meant, given_words = meant.commands[given_words[0]], given_words[1:]
            context = click.Context(meant, info_name=own, **meant.context_settings)
            _, extra, _ = meant.make_parser(context).parse_args(given_words)
            assert extra == [] or own in ("trtexec", "polygraphy")
    except (click.exceptions.Exit, corrections.TrtoptError):
        pass


def test_the_version_is_asked_for_in_three_ways(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--version"], ["version"], ["-V"]):
        cli.main(words, prog_name="trtopt", standalone_mode=False)
    assert len(set(capsys.readouterr().out.splitlines())) == 1


def test_help_of_a_command_is_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["help", "build"], ["help"], ["help", "deploy", "triton"]):
        cli.main(words, prog_name="trtopt", standalone_mode=False)
        assert capsys.readouterr().out.startswith(f"Usage: trtopt {' '.join(words[1:])}".rstrip())
