"""What a command writes replaces nothing that it reads, and nothing that trtopt did not write."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from tests.rewrite_graphs import model
from tests.support.command_line import DIGITS, CommandLine
from trtopt.cli.main import cli
from trtopt.errors import OutputError, TrtoptError, UsageError
from trtopt.precision.calibrate import table_text
from trtopt.records import from_json
from trtopt.records.precision import CalibrationTable

GRAPH = (
    "# w: float[64,64]\ng (float[N,64] x) => (float[N,64] y) {a = MatMul(x, w) b = Relu(a) y = Identity(b)}"
)
TABLE = CalibrationTable(
    model_sha256="m", data_sha256="d", random_data=False, samples=1, method="max", tensors={}
)


def run(*arguments: str) -> int:
    """The exit code of the command line; anything but trtopt's own errors is raised."""
    done = CliRunner().invoke(cli, arguments)
    if isinstance(done.exception, TrtoptError):
        return done.exception.exit_code
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models of a user, weights with the name that an output would choose, and trtopt's own files."""
    monkeypatch.chdir(tmp_path)
    made = model(GRAPH)
    onnx.save(made, "m.onnx", save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    os.rename("m.onnx", "old.onnx")
    onnx.save(onnx.load("old.onnx", load_external_data=False), "shares.onnx")
    onnx.save(made, "inline.onnx")
    np.savez("d.npz", x=np.ones((4, 64), "f"))
    Path("notes.txt").write_text("mine")
    Path("mine.json").write_text('{"a": 1}')
    Path("page.html").write_text("<p>mine</p>")
    edited = json.loads(table_text(TABLE)) | {"samples": 2}
    Path("out.onnx.calibration.json").write_text(json.dumps(edited))
    Path("link.onnx").symlink_to("inline.onnx")
    Path("dangling").symlink_to("nowhere")
    os.link("notes.txt", "hard.txt")
    Path("sub").mkdir()
    Path("here").symlink_to(".")
    assert run("rewrite", "old.onnx", "-o", "own.onnx", "--no-check") == 0
    assert run("lint", "own.onnx", "--json", "own.json") == 0
    return tmp_path


def contents(folder: Path) -> dict[str, str | bytes]:
    paths = [path for path in folder.iterdir() if path.is_symlink() or path.is_file()]
    return {path.name: os.readlink(path) if path.is_symlink() else path.read_bytes() for path in paths}


OWN = {"own.onnx", "own.onnx.data", "own.json"}


def attack(folder: Path, seed: int) -> bool:
    """Run a command whose outputs alias what is there; whether it did something."""
    choose = random.Random(seed)
    before = contents(folder)
    source = choose.choice(["old.onnx", "shares.onnx", "inline.onnx", "link.onnx", "own.onnx"])
    names = [*before, "out.onnx", "m.onnx", "new.json", "sub/new.onnx", "no/folder"]

    def output() -> str:
        name = choose.choice(names)
        return choose.choice(["{}", "./{}", "sub/../{}", "here/{}", f"{folder}/{{}}"]).format(name)

    command, *options = choose.choice(
        [
            ("rewrite", "--no-check", "-o", output()),
            ("rewrite", "--no-check", "-o", output(), "--json", output()),
            ("cast", "--no-compare", "-o", output(), "--data", "d.npz"),
            ("cast", "--no-compare", "-o", output(), "--json", output(), "--log-file", output()),
            ("quantize", "--precision", "int8", "--data", "d.npz", "-o", output()),
            ("lint", "--json", output()),
            ("lint", "--json", output(), "--log-file", output()),
            ("check", "--against", "inline.onnx", "--data", "d.npz", "--json", output()),
        ]
    )
    is_done = run(command, source, *options) == 0
    after = contents(folder)
    read = {source, "own.onnx.data"} if source == "own.onnx" else {source}
    for name, content in before.items():
        if name not in OWN or name in read:
            assert after.get(name) == content, f"{name} is lost: seed {seed}, {command} {source} {options}"
    if not is_done:
        assert {name: after.get(name) for name in OWN} == {name: before[name] for name in OWN}
    for name in before:
        if name.endswith(".onnx"):
            onnx.load(folder / name)  # with its weights
    return is_done


@pytest.mark.parametrize("seed", range(24))
def test_no_command_replaces_what_it_reads_or_what_is_the_users(folder: Path, seed: int) -> None:
    attack(folder, seed)


def test_what_a_command_wrote_before_is_replaced(folder: Path) -> None:
    for _ in range(2):
        assert run("rewrite", "old.onnx", "-o", "own.onnx", "--no-check", "--json", "trace.json") == 0
        assert run("lint", "own.onnx", "--json", "own.json", "--log-file", "log") == 0
        assert run("quantize", "old.onnx", "-o", "q.onnx", "--precision", "int8", "--data", "d.npz") == 0
    assert run("lint", "own.onnx", "--json", "trace.json") == OutputError.exit_code  # of another kind
    assert len(list(folder.glob("own.onnx*.data"))) == 1


def test_an_edited_calibration_table_stays(folder: Path) -> None:
    quantize = ("quantize", "old.onnx", "-o", "q.onnx", "--precision", "int8", "--data", "d.npz")
    assert run(*quantize) == 0
    table = folder / "q.onnx.calibration.json"
    assert table_text(from_json(table.read_bytes(), CalibrationTable)) == table.read_bytes()
    table.write_bytes(table.read_bytes().replace(b'"chosen": ', b'"chosen": 1'))
    edited = table.read_bytes()
    assert run(*quantize) == OutputError.exit_code
    assert run(*quantize[:4], "--precision", "int8", "--table", table.name) == UsageError.exit_code
    assert table.read_bytes() == edited


@pytest.mark.parametrize("command", ["lint", "check", "rewrite", "verify", "doctor", "cache"])
def test_json_makes_no_folder(command: str, folder: Path) -> None:
    arguments = {
        "check": ("inline.onnx", "--against", "inline.onnx"),
        "rewrite": ("inline.onnx", "-o", "out.onnx"),
        "verify": (".",),
        "doctor": (),
        "cache": ("ls",),
    }.get(command, ("inline.onnx",))
    assert run(command, *arguments, "--json", "no/such/x.json") == OutputError.exit_code
    assert not (folder / "no").exists()


def test_a_build_is_not_replaced_by_another_commands(folder: Path) -> None:
    assert run("build", "inline.onnx", "-o", "x.trtopt", "--backend", "onnxruntime") == 0
    manifest = folder / "x.trtopt" / "manifest.json"
    made = manifest.read_bytes()
    manifest.write_bytes(made.replace(b'"argv": [', b'"argv": ["trtopt", "tune",', 1))
    again = ("build", "inline.onnx", "-o", "x.trtopt", "--backend", "onnxruntime")
    assert run(*again) == OutputError.exit_code
    assert run(*again, "--force") == 0
    inside = ("build", "x.trtopt/model.onnx", "-o", "x.trtopt", "--backend", "onnxruntime", "--force")
    assert run(*inside) == UsageError.exit_code


@pytest.mark.parametrize("command", [("lint", DIGITS), ("--help",)])
def test_a_full_standard_output_is_an_error(command: tuple[str | Path, ...]) -> None:
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-m", "trtopt", *command]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == OutputError.exit_code
    assert "Traceback" not in done.stderr


def test_a_result_is_shown_though_the_disk_is_full(tmp_path: Path) -> None:
    def bound_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    line = [sys.executable, "-B", "-m", "trtopt", "lint", str(DIGITS), "--json", str(tmp_path / "l.json")]
    done = subprocess.run(line, preexec_fn=bound_files, capture_output=True, text=True, check=False)
    assert done.returncode == OutputError.exit_code
    assert "odd-product" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", [("build", DIGITS, "-o", ""), ("history", "add", "", DIGITS)])
def test_an_empty_name_is_not_the_current_folder(line: tuple[str, ...], trtopt_cli: CommandLine) -> None:
    trtopt_cli.fails(UsageError.exit_code, *line)
    assert list(trtopt_cli.folder.iterdir()) == []


@pytest.mark.parametrize("command", ["lint", "rewrite", "build", "models", "check"])
def test_a_name_that_is_too_long_is_an_error(command: str, trtopt_cli: CommandLine) -> None:
    long = "A" * 300
    options = {"rewrite": ("-o", "out.onnx"), "check": ("--against", DIGITS)}.get(command, ())
    trtopt_cli.fails(UsageError.exit_code, command, long, *options)


@pytest.mark.parametrize("command", ["rewrite", "build"])
def test_links_in_a_circle_are_no_place_to_write_to(
    command: str, trtopt_cli: CommandLine, tmp_path: Path
) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to("circle")
    options = ("--backend", "onnxruntime") if command == "build" else ()
    trtopt_cli.fails(UsageError.exit_code, command, DIGITS, "-o", circle, *options)
    assert circle.readlink() == Path("circle")


@pytest.mark.parametrize("line", ["def made(): sys.exit()", "sys.exit()"])
def test_a_users_code_that_ends_the_process_is_no_success(line: str, trtopt_cli: CommandLine) -> None:
    """As a script does whose last line is `sys.exit(main())`: a gate had passed, and nothing was compared."""
    (trtopt_cli.folder / "own.py").write_text(f"import sys\n{line}\n")
    check = ("check", DIGITS, "--against", DIGITS, "--min-cosine", "0.9", "--data")
    for command in (check, ("export", "-o", "x.onnx")):
        done = trtopt_cli(*command, "own.py:made")
        assert done.returncode in (TrtoptError.exit_code, UsageError.exit_code)
        assert "Traceback" not in done.stderr


def test_what_a_users_code_prints_is_not_among_the_json(trtopt_cli: CommandLine) -> None:
    body = "print('loading')\n    yield {'images': np.ones((2, 1, 8, 8), np.float32)}"
    (trtopt_cli.folder / "loud.py").write_text(f"import numpy as np\ndef made():\n    {body}\n")
    done = trtopt_cli("check", DIGITS, "--against", DIGITS, "--data", "loud.py:made", "--json", "-")
    assert json.loads(done.stdout)["schema"] == "trtopt.check/1"
    assert "loading" in done.stderr
