"""Where a measurement is being taken: device, software and host, as results record them."""

from __future__ import annotations

import platform
import subprocess

from trtopt.device.affinity import present_cores
from trtopt.device.api import Target
from trtopt.device.ort.host import cpu_name
from trtopt.records import Environment
from trtopt.version import __version__


def environment_of(target: Target) -> Environment:
    """Where a measurement is being taken."""
    return Environment(
        device=target.device.info,
        backend=target.backend,
        trtopt=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_name(),
        git_revision=_git_revision(),
        cpus=present_cores(),
    )


def _git_revision() -> str | None:
    """The revision of the folder that trtopt was started in, if it is a git checkout."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
