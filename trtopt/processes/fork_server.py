"""The process that others are forked from, each of which begins with what this one has imported.

Requests arrive on standard input, a socket: names of modules, and four descriptors (see `Child`). The modules
are imported here, once, and `main(channel, *arguments)` of the first runs in a fork. Nothing else runs here,
so that no library has touched a device, or started threads, which a fork would lack.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

from trtopt.processes.messages import receive
from trtopt.records import Record

NUMBER = struct.Struct("<q")
"""How a fork's number is sent, and its status as `subprocess` has it."""
_LONGEST_REQUEST = 1 << 10
_DESCRIPTORS = 4
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_FIRST_VARIABLES = frozenset(os.environb)


class Start(Record, frozen=True, kw_only=True):
    """What a fork reads on its channel before all else; `command`: what it executes, if anything."""

    arguments: tuple[str, ...]
    command: tuple[str, ...]
    environment: tuple[tuple[bytes, bytes], ...]
    cores: tuple[int, ...]


@dataclass
class _Fork:
    """One that lives, or whose number may still be used; `life` is the other end of `Child`'s."""

    number: int
    life: socket.socket
    is_wanted: bool = True
    has_ended: bool = False

    def kill(self) -> None:
        """End it, and what it has started: that may hold its channel open, or a device."""
        with suppress(ProcessLookupError):
            os.killpg(self.number, signal.SIGKILL)

    def look(self) -> None:
        """If it has ended, say so; its number stays its own until it is no longer needed."""
        ended = (
            None if self.has_ended else os.waitid(os.P_PID, self.number, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        )
        if ended is not None:
            self.has_ended = True
            self.kill()
            status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            with suppress(OSError):
                self.life.send(NUMBER.pack(status))
        if self.has_ended and not self.is_wanted:
            os.waitpid(self.number, 0)
            self.life.close()


def main() -> None:
    """Fork until every process that could request it, or that uses a fork, is gone."""
    requests = socket.socket(fileno=os.dup(0))
    ended, wake = socket.socketpair()
    for one in (ended, wake):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})  # whoever started this may have it blocked
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    poll.register(ended, select.POLLIN)
    forks: list[_Fork] = []
    is_open = True
    while is_open or forks:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if ended.fileno() in ready:
            ended.recv(1 << 16)
        for fork in forks:
            if fork.is_wanted and fork.life.fileno() in ready:
                poll.unregister(fork.life)
                fork.is_wanted = False
                fork.kill()
            fork.look()
        forks = [fork for fork in forks if fork.life.fileno() >= 0]
        if requests.fileno() in ready:
            names, descriptors, _, _ = socket.recv_fds(requests, _LONGEST_REQUEST, _DESCRIPTORS)
            if not names:
                is_open = False
                poll.unregister(requests)
                continue
            own = [requests, ended, wake, *(fork.life for fork in forks)]
            if made := _fork(names.decode().split(), descriptors, own):
                forks.append(made)
                poll.register(made.life, select.POLLIN)


def _fork(modules: list[str], descriptors: list[int], own: Iterable[socket.socket]) -> _Fork | None:
    """A fork that runs the first module; None if there can be none: the reason is printed as its own."""
    for one in descriptors:
        os.set_inheritable(one, False)  # what outlives a fork would hold its channel open
    channel, printed, folder, life = descriptors
    try:
        if not sys.modules.keys() >= set(modules):
            for name in modules:
                import_module(name)
            gc.collect()
            gc.freeze()  # garbage is collected before passes: not among what has been imported, which stays
        number = os.fork()
    except BaseException:  # noqa: BLE001  (of whatever is imported: the next request may fare better)
        with os.fdopen(os.dup(printed), "w") as file:
            traceback.print_exc(file=file)
        number = -1
    if number == 0:
        leave_after(lambda: _become(modules[0], descriptors, own))
    for one in (channel, printed, folder):
        os.close(one)
    if number < 0:
        os.close(life)
        return None
    with suppress(OSError):  # it has done so itself, and may even have ended
        os.setpgid(number, number)
    fork = _Fork(number, socket.socket(fileno=life))
    with suppress(OSError):
        fork.life.send(NUMBER.pack(number))
    return fork


def _become(module: str, descriptors: list[int], own: Iterable[socket.socket]) -> None:
    """Be the requested process."""
    for held in own:
        held.close()
    number, printed, folder, life = descriptors
    os.close(life)
    channel = socket.socket(fileno=number)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.fchdir(folder)
    start: Start = receive(channel, Start)
    os.sched_setaffinity(0, start.cores)
    for variable in _FIRST_VARIABLES:
        os.environb.pop(variable, None)  # what imports have set stays
    os.environb.update(start.environment)
    if start.command:
        os.set_inheritable(number, True)
        os.execv(start.command[0], [*start.command, str(number), *start.arguments])
    tempfile.tempdir = None  # as the variables have it
    sys.modules[module].main(channel, *start.arguments)


def execute() -> None:
    """Be a requested process in a Python of its own: its module, its channel's number and its arguments."""
    leave_after(_run_executed)


def _run_executed() -> None:
    module, number, *arguments = sys.argv[1:]
    os.set_inheritable(int(number), False)
    run = import_module(module).main
    gc.collect()
    gc.freeze()  # as where others are forked
    run(socket.socket(fileno=int(number)), *arguments)


def leave_after(work: Callable[[], None]) -> NoReturn:
    """Do the work of this process, and end it.

    Without the interpreter's teardown: native libraries can crash in it, and threads may wait for input.
    """
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:  # noqa: BLE001  (a fault of ours: whoever asked shows its last words)
        at = error.__traceback__
        while at is not None and at.tb_next is not None and at.tb_frame.f_code.co_filename == __file__:
            at = at.tb_next  # what is ours here says nothing
        traceback.print_exception(type(error), error, at)
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
