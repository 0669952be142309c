"""A requested process in a Python of its own: see `Child`."""

from __future__ import annotations

import gc
import os
import socket
import sys
from importlib import import_module

from trtopt.processes.fork_server import leave_after


def main() -> None:
    """Run a module's `main(channel, *arguments)`, the channel given by its number."""
    leave_after(_run)


def _run() -> None:
    module, number, *arguments = sys.argv[1:]
    os.set_inheritable(int(number), False)
    run = import_module(module).main
    gc.collect()
    gc.freeze()  # as where others are forked
    run(socket.socket(fileno=int(number)), *arguments)
