"""Where processes import from, what they begin with, and that they end."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import trtopt
from trtopt.processes import child
from trtopt.processes.child import Child, python_command
from trtopt.processes.messages import receive

HOME = str(Path(trtopt.__file__).parents[1])
TELLING = """
import os, resource, subprocess, sys
from trtopt.processes.messages import frame, send

def main(channel, *words):
    print("the last that was heard", file=sys.stderr)
    libraries = {line.split("/")[-1].strip() for line in open(f"/proc/{os.getppid()}/maps") if ".so" in line}
    began = subprocess.Popen(["sleep", "1000"]).pid
    send(channel, frame({
        "words": words, "folder": os.getcwd(), "cores": sorted(os.sched_getaffinity(0)),
        "variable": os.environ.get("OF_TEST"), "telemetry": os.environ.get("ORT_DISABLE_TELEMETRY"),
        "server": os.getppid(), "began": began, "inherited": channel.get_inheritable(),
        "command": open("/proc/self/cmdline").read().split("\\0"),
        "libraries": sorted(libraries), "modules": sorted(sys.modules),
        "umask": os.umask(0), "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "threads": len(os.listdir(f"/proc/{os.getppid()}/task")),
    }))
    if words == ("leave",):
        sys.exit(7)
    import ctypes
    ctypes.PyDLL(None).sleep(1000)  # keeps the interpreter to itself
"""


@pytest.fixture
def telling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that forks may run."""
    (tmp_path / "telling_of_test.py").write_text(TELLING, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for server in child._servers[-1:]:  # none where only another process has asked
        server.close()


def is_gone(number: int) -> bool:
    """Whether a process ends, be it that nobody has waited for it."""
    state = Path("/proc", str(number), "stat")
    for _ in range(3000):
        try:
            if state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.usefixtures("telling")
def test_a_fork_has_the_folder_cores_and_variables_of_whoever_asks_and_ends_with_what_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.sched_getaffinity(0)
    for turn in range(2):
        (folder := tmp_path / str(turn)).mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("OF_TEST", str(turn))
        os.sched_setaffinity(0, {min(before) if turn else max(before)})
        try:
            process = Child("telling_of_test", "a b", str(turn), environment={"ANOTHER": "x"})
        finally:
            os.sched_setaffinity(0, before)
        told = receive(process.channel, dict)
        assert told["words"] == ["a b", str(turn)]
        assert not told["inherited"]  # whatever outlives it would hold the channel open
        assert (told["folder"], told["variable"]) == (str(folder), str(turn))
        assert told["cores"] == [min(before) if turn else max(before)]
        assert process.wait(0) is None
        assert process.stop() == -signal.SIGKILL
        assert is_gone(told["began"])
    assert len({told["server"], child._servers[-1].process.pid}) == 1


@pytest.mark.usefixtures("telling")
def test_what_a_fork_says_and_how_it_ends_is_kept() -> None:
    process = Child("telling_of_test", "leave")
    told = receive(process.channel, dict)
    assert process.wait() == 1
    assert is_gone(told["began"])
    how, cause = process.death(["nothing"])
    assert (how, "SystemExit: 7" in process.printed()) == ("ended with status 1", True)
    assert "the last that was heard" in process.printed()
    assert "telling_of_test.py raised" in cause
    process.stop()
    process.stop()
    assert Path(f"/proc/{told['server']}/fd/1").stat().st_size == 0  # it is the first one's


def test_a_module_that_cannot_be_imported_is_reported_as_a_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_of_test.py").write_text("1 / 0", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    process = Child("failing_of_test")
    assert process.death(["nothing"])[0] == "ended with status 1"
    assert "ZeroDivisionError" in process.printed()
    assert process.stop() == 1


def test_a_server_that_is_killed_before_it_forks_is_reported_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killing_of_test.py").write_text("import os; os.kill(os.getpid(), 9)", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    process = Child("killing_of_test")
    assert process.death(["nothing"])[0] == "was ended by SIGKILL"
    process.stop()


@pytest.mark.usefixtures("telling")
def test_all_end_with_the_process_that_asked_or_with_the_server() -> None:
    code = (
        "from trtopt.processes.child import Child\nfrom trtopt.processes.messages import receive\n"
        "fork = Child('telling_of_test')\ntold = receive(fork.channel, dict)\n"
        "print(told['server'], told['began'], flush=True)\n"
        "import time; time.sleep(1000)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for killed in ("driver", "server"):
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as driver:
            assert driver.stdout is not None
            server, began = map(int, driver.stdout.readline().split())
            fork = next(iter(Path(f"/proc/{server}/task/{server}/children").read_text().split()))
            os.kill(driver.pid if killed == "driver" else server, signal.SIGKILL)
            assert is_gone(int(fork))
            if killed == "driver":
                assert is_gone(server)
                assert is_gone(began)
            driver.kill()
            os.kill(began, signal.SIGKILL) if killed == "server" else None


@pytest.mark.usefixtures("telling")
@pytest.mark.parametrize("profiler", [None, "LD_PRELOAD", "NSYS_PROFILING_SESSION_ID"])
def test_a_fresh_one_is_executed_and_so_is_what_a_profiler_is_to_follow(profiler: str | None) -> None:
    environment = {profiler: ""} if profiler else {}
    forked = Child("telling_of_test", preload=["colorsys"])
    fresh = Child("telling_of_test", "a b", preload=["colorsys"], environment=environment, fresh=not profiler)
    told = [receive(one.channel, dict) for one in (forked, fresh)]
    assert [one["server"] for one in told] == [child._servers[-1].process.pid] * 2
    assert ["colorsys" in one["modules"] for one in told] == [True, False]
    assert told[1]["command"][-4:-1] == ["telling_of_test", told[1]["command"][-3], "a b"]
    assert (told[1]["words"], told[1]["inherited"]) == (["a b"], False)
    for one, heard in zip((forked, fresh), told, strict=True):
        assert one.stop() == -signal.SIGKILL
        assert is_gone(heard["began"])


@pytest.mark.usefixtures("telling")
def test_a_death_is_noticed_where_the_signal_for_it_is_blocked() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        process = Child("telling_of_test", "leave")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert process.wait(60) == 1
    process.stop()


@pytest.mark.usefixtures("telling")
def test_whoever_drops_privileges_has_no_forks_of_a_server_that_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = []
    for groups in ([], [1]):
        monkeypatch.setattr(os, "getgroups", lambda groups=groups: groups)
        process = Child("telling_of_test")
        servers.append(receive(process.channel, dict)["server"])
        process.stop()
    assert len(set(servers)) == 2


@pytest.mark.usefixtures("telling")
def test_files_of_a_fork_have_the_permissions_that_the_caller_asks_for() -> None:
    before = os.umask(0o022)
    try:
        for mask in (0o022, 0o077):
            os.umask(mask)
            process = Child("telling_of_test")
            assert receive(process.channel, dict)["umask"] == mask
            process.stop()
    finally:
        os.umask(before)


@pytest.mark.usefixtures("telling")
def test_a_fork_is_held_to_the_limits_of_the_caller() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for most in (200, 300):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
            process = Child("telling_of_test")
            assert receive(process.channel, dict)["files"] == most
            process.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_workers_are_forked_before_anything_has_touched_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a server has that has imported all that workers need: ONNX Runtime, and no CUDA."""
    (tmp_path / "telling_too.py").write_text(TELLING, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    process = Child("telling_too", preload=["trtopt.workers.worker", "trtopt.device.ort.server"])
    told = receive(process.channel, dict)
    process.stop()
    assert {"numpy", "onnx", "onnxruntime"} <= set(told["modules"])
    assert told["telemetry"] == "1"
    assert not {"tensorrt", "tensorrt_rtx", "cuda", "pycuda", "pynvml", "cupti"} & set(told["modules"])
    assert not [
        name for name in told["libraries"] if "cuda" in name or "nvinfer" in name or "tensorrt" in name
    ]


def seen_by_a_child(folder: Path) -> list[str]:
    """`sys.path` of a process that is started from `folder`."""
    (folder / "telling.py").write_text("import sys\ndef main(): print(*sys.path, sep='\\n')\n")
    done = subprocess.run(python_command("telling"), capture_output=True, text=True, check=True, cwd=folder)
    return done.stdout.splitlines()


@pytest.mark.parametrize("entry", ["", ".", "{here}"])
def test_the_current_folder_is_not_handed_on(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modüles 'of' mine"
    here = tmp_path / "here"
    modules.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", sys.__spec__)  # as `python -m` has it
    monkeypatch.setattr(sys, "path", [entry.format(here=here), str(modules), *sys.path])
    (modules / "telling.py").write_text("import sys\ndef main(): print(ascii(sys.path))\n")
    done = subprocess.run(python_command("telling"), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ascii(list(dict.fromkeys(sys.path[1:])))


def test_the_folder_of_a_script_is_handed_on_wherever_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert seen_by_a_child(tmp_path) == list(dict.fromkeys(sys.path))


def test_the_current_folder_is_handed_on_where_pythonpath_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", sys.__spec__)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert seen_by_a_child(tmp_path) == list(dict.fromkeys(sys.path))


def test_the_current_folder_is_handed_on_where_trtopt_lies_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HOME)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", [HOME, "", *sys.path])
    command = python_command("trtopt.version")
    assert f"[{HOME!a}, " in command[-1]
    assert "''" not in command[-1]
