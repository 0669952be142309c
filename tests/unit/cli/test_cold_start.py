import json
import os
import subprocess
import sys
from typing import Any

import pytest

import trtopt
from trtopt.cli.main import COMMANDS

HEAVY = {
    "onnx",
    "onnx_graphsurgeon",
    "torch",
    "tensorrt",
    "tensorrt_rtx",
    "onnxruntime",
    "polygraphy",
    "cuda",
    "pycuda",
    "pynvml",
    "jinja2",
    "vl_convert",
}
TELL = (
    "import json, sys; sys.stderr.write(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
)
COMMAND_LINE = f"""
import sys
sys.argv = ["trtopt", *sys.argv[1:]]
from trtopt.cli.main import main
try:
    main()
finally:
    {TELL}
"""


def told(script: str, *arguments: str, **environment: str) -> tuple[str, Any]:
    """What a script prints in a fresh interpreter, and what it tells in JSON."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stderr)


def run(script: str, *arguments: str, **environment: str) -> tuple[str, set[str]]:
    """What a script prints in a fresh interpreter, and the top-level modules that it ends up with."""
    printed, modules = told(script, *arguments, **environment)
    return printed, set(modules)


def test_a_module_that_is_imported_is_noticed() -> None:
    """The other tests here can fail: this is how they would."""
    _, modules = run(f"import numpy\n{TELL}")
    assert "numpy" in modules


def test_importing_trtopt_loads_nothing_heavy_and_no_numpy() -> None:
    _, modules = run(f"import trtopt; trtopt.__version__\n{TELL}")
    assert modules & (HEAVY | {"numpy", "msgspec", "rich", "click"}) == set()


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"]])
def test_the_first_help_loads_nothing_heavy_and_no_numpy(arguments: list[str]) -> None:
    printed, modules = run(COMMAND_LINE, *arguments)
    assert modules & (HEAVY | {"numpy", "rich"}) == set()
    if arguments == ["--version"]:
        assert trtopt.__version__ in printed
    else:
        assert all(name in printed for name in COMMANDS)


EVERY_COMMAND = """
import contextlib, io, json, sys
from trtopt.cli.main import COMMANDS, main
found, seen = {}, set()
for command in COMMANDS:
    sys.argv, printed = ["trtopt", command, "--help"], io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(printed):
        main()
    new = {name.partition(".")[0] for name in sys.modules} - seen
    seen |= new
    found[command] = [printed.getvalue(), sorted(new)]
sys.stderr.write(json.dumps(found))
"""


def test_the_help_of_a_command_loads_nothing_heavy() -> None:
    found = told(EVERY_COMMAND)[1]
    for name in COMMANDS:
        printed, new = found[name]
        assert printed.startswith(f"Usage: trtopt {name} ")
        assert HEAVY.intersection(new) == set(), name


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("trtopt b", ["build", "bench", "bisect"]),
        ("trtopt build --opt", ["--opt-level"]),
        ("trtopt bench --stre", ["--streams"]),
    ],
)
def test_completion_works_and_loads_nothing_heavy(words: str, offered: list[str]) -> None:
    last = str(words.count(" "))
    printed, modules = run(COMMAND_LINE, _TRTOPT_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=last)
    assert printed.splitlines() == [f"plain,{name}" for name in offered]
    assert modules & HEAVY == set()


def test_the_module_runs_as_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trtopt", "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"trtopt, version {trtopt.__version__}")


# ── the library's front door ────────────────────────────────────────────────────────────────────────────


def test_every_public_name_can_be_reached() -> None:
    for name in trtopt.__all__:
        assert getattr(trtopt, name) is not None


def test_public_names_are_functions_even_after_their_modules_were_imported() -> None:
    import trtopt.api
    import trtopt.cli.engines
    import trtopt.workflows.bench.bench
    import trtopt.workflows.build.build

    assert trtopt.build is trtopt.api.build
    assert trtopt.bench is trtopt.api.bench


def test_a_name_that_does_not_exist_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = trtopt.no_such_name
