"""Whatever a worker does to itself is told as its job's failure; nothing else is harmed, nothing left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.command_line import DIGITS, CommandLine

MISBEHAVING = """
import ctypes, os, resource, subprocess, sys, time

def say():
    print("the last that was heard", file=sys.stderr, flush=True)

def segfault():
    say()
    ctypes.string_at(0)

def abort():
    say()
    os.abort()

def killed():
    say()
    os.kill(os.getpid(), 9)

def leave():
    say()
    os._exit(7)

def forever():
    say()
    child = subprocess.Popen(["sleep", "1000"])
    open("child.pid", "w").write(str(child.pid))
    while True:
        time.sleep(1000)

def hungry():
    here = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (here + (64 << 20), resource.RLIM_INFINITY))
    yield {"images": bytearray(1 << 40)}

def survived():
    child = os.fork()
    if child == 0:  # holds the pipe to the supervisor open
        time.sleep(1000)
    open("child.pid", "w").write(str(child))
    killed()

def selfish():
    open("child.pid", "w").write(str(os.getpid()))
    ctypes.PyDLL(None).sleep(1000)  # keeps the interpreter to itself

def unexpected():
    say()
    raise GeneratorExit  # no Exception: trtopt leaves it to Python

def torn():
    say()
    for number in range(3, 64):  # the pipe to the supervisor is one of these
        try:
            os.write(number, b'{"type":"bench')
        except OSError:
            pass
    os._exit(0)
"""


@pytest.fixture
def bench(trtopt_cli: CommandLine) -> CommandLine:
    (trtopt_cli.folder / "bad.py").write_text(MISBEHAVING)
    return trtopt_cli


def told_of(bench: CommandLine, function: str, *flags: str) -> str:
    done = bench("bench", DIGITS, "--backend", "onnxruntime", "--data", f"bad:{function}", *flags)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("function", "how", "why"),
    [
        pytest.param(
            "segfault",
            "was ended by SIGSEGV",
            "a crash in native code, that of ONNX Runtime or what bad:segfault",
            marks=pytest.mark.long,
        ),
        ("abort", "was ended by SIGABRT", "a crash in native code, that of ONNX Runtime or what bad:abort"),
        ("killed", "was ended by SIGKILL", "nothing in it does that: another process, or the kernel"),
        ("leave", "ended with status 7", "ended from within, by ONNX Runtime or what bad:leave calls"),
        ("torn", "ended with status 0", "ended from within, by ONNX Runtime or what bad:torn calls"),
        ("unexpected", "ended with status 1", "bad.py raised, which trtopt did not expect"),
    ],
)
def test_a_measurement_whose_process_dies_is_a_failure_with_its_last_words(
    bench: CommandLine, function: str, how: str, why: str
) -> None:
    done = bench("bench", DIGITS, "--backend", "onnxruntime", "--data", f"bad:{function}")
    told = done.stderr
    assert done.returncode == 1, told
    assert how in told
    assert why in told
    assert "the last that was heard" in told


def test_a_measurement_that_asks_for_more_memory_than_there_is_is_a_failure(bench: CommandLine) -> None:
    assert "memory" in told_of(bench, "hungry").lower()


@pytest.mark.long
def test_a_measurement_that_hangs_is_ended_with_what_it_started(bench: CommandLine) -> None:
    told = told_of(bench, "forever", "--timeout", "8")
    assert "not done after 8 s" in told
    assert "--timeout" in told
    assert "the last that was heard" in told
    assert is_gone(bench)


def is_gone(bench: CommandLine) -> bool:
    """Whether the process that wrote `child.pid` ends, waited for or not; a kill takes a moment."""
    state = Path("/proc", (bench.folder / "child.pid").read_text(), "stat")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if "Z" in state.read_text().split()[2]:
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_what_a_dead_worker_has_started_is_not_waited_for_but_ended(bench: CommandLine) -> None:
    assert "was ended by SIGKILL" in told_of(bench, "survived")
    assert is_gone(bench)


def test_a_worker_ends_with_the_process_that_started_it_whatever_it_hangs_in(bench: CommandLine) -> None:
    command = [sys.executable, "-m", "trtopt", "bench", str(DIGITS), "--backend", "onnxruntime"]
    process = subprocess.Popen([*command, "--data", "bad:selfish"], cwd=bench.folder)
    while not (pid := bench.folder / "child.pid").exists() or not pid.read_text():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert is_gone(bench), "it outlived the command"


def test_what_was_measured_before_a_death_is_kept(bench: CommandLine) -> None:
    (bench.folder / "bad.py").write_text(
        MISBEHAVING
        + """
import numpy as np

def second_time():
    if os.path.exists("once"):
        killed()
    open("once", "w").close()
    yield {"images": np.zeros((8, 1, 8, 8), np.float32)}
"""
    )
    flags = ("--batch", "1,8", "--duration", "0.05", "--warmup", "0.01", "--json", "out.json")
    assert "was ended by SIGKILL" in told_of(bench, "second_time", *flags)
    assert b'"batch":1,' in (bench.folder / "out.json").read_bytes()


def test_a_build_that_takes_longer_than_it_may_is_a_failure_and_leaves_nothing(
    trtopt_cli: CommandLine,
) -> None:
    told = trtopt_cli.fails(1, "build", DIGITS, "--backend", "tensorrt-rtx", "--build-timeout", "0.01")
    assert "building batch1: not done after 0.01 s" in told
    assert "--build-timeout" in told


@pytest.fixture
def hanging_plugin(tmp_path: Path) -> Path:
    """A library that says something and never finishes loading."""
    source, library = tmp_path / "hang.c", tmp_path / "hang.so"
    source.write_text(
        "#include <stdio.h>\n#include <unistd.h>\n"
        "__attribute__((constructor)) static void hang(void) "
        '{ fprintf(stderr, "the plugin is stuck\\n"); for (;;) pause(); }'
    )
    try:
        subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    except FileNotFoundError:
        pytest.skip("needs a C compiler")
    return library


@pytest.mark.long
def test_a_build_whose_plugin_hangs_is_a_failure_with_its_last_words(
    trtopt_cli: CommandLine, hanging_plugin: Path
) -> None:
    flags = ("--backend", "tensorrt-rtx", "--plugin", hanging_plugin, "--build-timeout", "10")
    began = time.monotonic()
    told = trtopt_cli.fails(1, "build", DIGITS, *flags)
    assert "building batch1: not done after 10 s" in told
    assert "the plugin is stuck" in told
    assert time.monotonic() - began >= 10


@pytest.mark.parametrize("value", ["0", "-1", "nan", "1e9"])
@pytest.mark.parametrize(("command", "flag"), [("build", "--build-timeout"), ("bench", "--timeout")])
def test_a_time_limit_that_is_none_is_refused(
    trtopt_cli: CommandLine, command: str, flag: str, value: str
) -> None:
    backend = "onnxruntime" if command == "bench" else "tensorrt-rtx"
    assert "out of range" in trtopt_cli.fails(2, command, DIGITS, "--backend", backend, flag, value)
