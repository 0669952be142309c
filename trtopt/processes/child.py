"""A process of trtopt's own, seen from the one that started it, and what its death says."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from trtopt.processes import fork_server
from trtopt.processes.fork_server import NUMBER, Start
from trtopt.processes.messages import frame, send

_PACKAGES = Path(__file__).resolve().parents[2]
_PRINTED_BYTES = 1 << 16
_READ_AT_START = tuple(
    os.fsencode(name)
    for name in ("PYTHON", "LD_", "LC_", "LANG", "GLIBC_", "MALLOC_", "OMP_", "OPENBLAS_", "MKL_")
)
"""How variables begin that Python, the loader, or a library reads once: a server has those it began with."""
_INJECTED = frozenset(["LD_PRELOAD", "NSYS_PROFILING_SESSION_ID"])
"""Variables of profilers: they follow what is executed, and no fork, and may start threads where they are."""
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def python_command(module: str, function: str = "main") -> list[str]:
    """What runs a function of a module in a Python of its own, which imports from where this one does.

    It never imports what happens to lie in the current folder, as `python -m` would.
    """
    code = f"import sys; sys.path[:] = {_import_path()!a}; from {module} import {function}; {function}()"
    isolated = ["-I"] if sys.flags.isolated else []
    return [sys.executable, *isolated, "-c", code]


def _import_path() -> list[str]:
    """This process's, without the current folder unless the user put it there."""
    requested = {os.path.abspath(name) for name in os.environ.get("PYTHONPATH", "").split(os.pathsep) if name}
    has_own_folder = (
        getattr(sys.modules["__main__"], "__spec__", None) is None
    )  # a script's, which may be this
    kept = {str(_PACKAGES), *requested, *(name for name in sys.path[:1] if has_own_folder and name)}
    here = {os.getcwd(), os.path.realpath(os.getcwd())} - kept
    return [name for name in dict.fromkeys(sys.path) if name and os.path.abspath(name) not in here]


class _Server:
    """The process that forks; all forks of this one may ask it too."""

    def __init__(self, command: list[str], printed: IO[bytes], terms: object) -> None:
        self.terms = terms
        self._requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=printed, stderr=printed, start_new_session=True
            )

    def fork(self, modules: Sequence[str], descriptors: Sequence[int]) -> None:
        """Ask for a fork."""
        socket.send_fds(self._requests, [" ".join(modules).encode()], descriptors)

    def close(self) -> None:
        """Ask for nothing more: it ends with the last of its forks."""
        self._requests.close()


_servers: list[_Server] = []
_guard = threading.Lock()


def _renew_guard() -> None:
    """In the child of a fork: a thread that is not there may hold it."""
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_renew_guard)


def _ask_for_fork(modules: Sequence[str], descriptors: Sequence[int], printed: IO[bytes]) -> None:
    """Have the server fork; a new one if there is none, or if it began under other terms than hold now."""
    command = python_command(fork_server.__name__)
    variables = sorted(item for item in os.environb.items() if item[0].startswith(_READ_AT_START))
    owner = (os.getresuid(), os.getresgid(), os.getgroups(), _umask())
    terms = (command, variables, owner, [resource.getrlimit(limit) for limit in _LIMITS])
    with _guard:
        if _servers and _servers[-1].terms == terms:
            with suppress(OSError):  # it is gone
                _servers[-1].fork(modules, descriptors)
                return
        if _servers:
            _servers[-1].close()
        _servers.append(_Server(command, printed, terms))
        _servers[-1].fork(modules, descriptors)


def _umask() -> str:
    """As the system has it: `os.umask` cannot be read without being set."""
    status = Path("/proc/self/status").read_text("ascii", "replace")
    return next((line for line in status.splitlines() if line.startswith("Umask:")), "")


class Child:
    """A process that runs `main(channel, *arguments)` of a module, in this one's folder, on its cores.

    It has this one's variables, and those of `environment`. Messages (see `messages`) pass through `channel`,
    and what it prints is kept. It ends with this process, or with this object; what it has started, with it.
    It begins with what has been imported before, the modules of `preload` too, unless it is to be `fresh`.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        preload: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        self._oom_kills = out_of_memory_kills()
        self._status: int | None = None
        self._guard = threading.Lock()
        self._printed: IO[bytes] = TemporaryFile()  # noqa: SIM115  (closed by `stop`)
        self.channel, theirs = socket.socketpair()
        self._life, life = socket.socketpair()
        variables = os.environ | dict(environment or {})
        is_fresh = fresh or not _INJECTED.isdisjoint(variables)
        modules = [fork_server.__name__] if is_fresh else [module, *preload]
        folder = os.open(".", os.O_PATH)
        try:
            descriptors = [theirs.fileno(), self._printed.fileno(), folder, life.fileno()]
            _ask_for_fork(modules, descriptors, self._printed)
        finally:
            os.close(folder)
            theirs.close()
            life.close()
        told = self._life.recv(NUMBER.size)
        self.number: int = NUMBER.unpack(told)[0] if told else 0
        if not told:  # the server printed why, unless it was killed
            self._status = 1 if self.printed() else -signal.SIGKILL
        start = Start(
            arguments=arguments,
            command=(*python_command(fork_server.__name__, "execute"), module) if is_fresh else (),
            environment=tuple((os.fsencode(name), os.fsencode(text)) for name, text in variables.items()),
            cores=tuple(os.sched_getaffinity(0)),
        )
        with suppress(OSError):  # it has ended at once: whoever awaits a message learns that
            send(self.channel, frame(start))

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its status at the end, as `subprocess` has it; None where that is not reached in time."""
        with self._guard:
            if self._status is None:
                poll = select.poll()
                poll.register(self._life, select.POLLIN)
                if poll.poll(None if timeout_s is None else timeout_s * 1000):
                    told = self._life.recv(NUMBER.size)
                    self._status = NUMBER.unpack(told)[0] if told else -signal.SIGKILL  # with the server
            return self._status

    def printed(self, most: int = _PRINTED_BYTES) -> str:
        """The end of what it has printed."""
        self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - most))
        return self._printed.read().decode(errors="replace").strip()

    def death(self, native: Sequence[str]) -> tuple[str, str]:
        """How it has ended, and what is known of why; `native` names whose native code it ran."""
        status = self.wait()
        assert status is not None
        starved = out_of_memory_kills() > self._oom_kills
        return how_it_ended(status), cause_of_death(status, self.printed(), native, starved=starved)

    def stop(self) -> int:
        """End it, and what it has started, and wait for that; returns its status.

        It cleans up nothing: its files have temporary names.
        """
        if self._status is None:
            with suppress(ProcessLookupError):
                os.killpg(self.number, signal.SIGKILL)  # its number is still its own
        status = self.wait()
        assert status is not None
        with suppress(OSError, ValueError):  # it has been stopped before
            self._printed.truncate(0)  # a server that began with it holds it open to its own end
        with suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)  # for a thread that reads
        for one in (self.channel, self._life, self._printed):
            one.close()
        return status


# ── why it ended ────────────────────────────────────────────────────────────────────────────────────────

_CRASHES = {
    signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP,
    signal.SIGSYS,
}  # fmt: skip
_SIGNALLED = {signal.SIGXCPU: "processor time (ulimit -t)", signal.SIGXFSZ: "file sizes (ulimit -f)"}
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ *File "(?P<file>.+)", line \d+', re.MULTILINE)
_MORE_MEMORY = "use a smaller batch or model, or a machine with more memory"


def how_it_ended(status: int) -> str:
    """`was ended by SIGSEGV` or `ended with status 7`, for a status as `subprocess` has it."""
    return f"was ended by {_signal_name(-status)}" if status < 0 else f"ended with status {status}"


def cause_of_death(status: int, printed: str, native: Sequence[str], *, starved: bool) -> str:
    """What is known of why a process ended without a result, and what to do.

    `printed` is the end of what it wrote to standard error, `native` names whose native code it ran, and
    `starved`: the kernel ended processes for lack of memory while it lived.
    """
    number = -status
    if number == signal.SIGKILL and starved:
        return f"out of host memory: the kernel ended it; {_MORE_MEMORY}"
    if number == signal.SIGKILL:
        return f"nothing in it does that: another process, or the kernel, out of memory (then {_MORE_MEMORY})"
    if number == signal.SIGBUS:
        return "a file that it read from was cut short meanwhile, or its disk failed; run it again"
    if number in _CRASHES:
        return f"a crash in native code, that of {_listed(native)}; see whether another version has it too"
    if number in _SIGNALLED:
        return f"it went beyond this system's limit on {_SIGNALLED[signal.Signals(number)]}; raise it"
    if number > 0:
        return "another process sent it that signal; run it again"
    if _TRACEBACK in printed:
        return _cause_of_traceback(printed)
    return f"it was ended from within, by {_listed(native)}; see what it printed"


def _cause_of_traceback(printed: str) -> str:
    """Whose fault a traceback shows: that of the code which its last frame lies in."""
    traceback = printed[printed.rindex(_TRACEBACK) :]
    if re.search(r"^[\w.]*MemoryError\b", traceback, re.MULTILINE):
        return f"out of host memory; {_MORE_MEMORY}"
    files = [Path(match["file"]) for match in _FRAME.finditer(traceback)]
    if files and files[-1].is_absolute() and _PACKAGES / "trtopt" not in files[-1].parents:
        return (
            f"an error that {files[-1]} raised, which trtopt did not expect: correct that file if it is "
            "yours, else please report it, with this text"
        )
    return "a fault of trtopt's own: please report it, with this text"


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def out_of_memory_kills() -> int:
    """How many processes the kernel has ended for want of memory, in our control group if it counts there."""
    for path in (_control_group() / "memory.events", Path("/proc/vmstat")):
        with suppress(OSError, ValueError):
            words = path.read_text().split()
            return int(words[words.index("oom_kill") + 1])
    return 0


def _control_group() -> Path:
    """The folder of this process's control group, as version 2 has them."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return Path("/sys/fs/cgroup", line.removeprefix("0::").lstrip("/"))
    return Path("/sys/fs/cgroup")
