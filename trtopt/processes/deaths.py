"""What the death of a process says."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_CRASHES = {
    signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP,
    signal.SIGSYS,
}  # fmt: skip
_LIMITS = {signal.SIGXCPU: "processor time (ulimit -t)", signal.SIGXFSZ: "file sizes (ulimit -f)"}
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
    if number in _LIMITS:
        return f"it went beyond this system's limit on {_LIMITS[signal.Signals(number)]}; raise it"
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
    if files and files[-1].is_absolute() and _PACKAGE not in files[-1].parents:
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
