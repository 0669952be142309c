"""A look at the machine."""

from __future__ import annotations

from trtopt.device.environment import survey
from trtopt.records import MachineSurvey


def examine() -> MachineSurvey:
    """What this machine has; imports every inference library that is installed."""
    return survey()
