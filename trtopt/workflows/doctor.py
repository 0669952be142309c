"""A look at the machine."""

from __future__ import annotations

import os

import msgspec

from trtopt.device.environment import survey
from trtopt.errors import TrtoptError
from trtopt.executors.ray.connection import offer_of
from trtopt.records import MachineSurvey


def examine() -> MachineSurvey:
    """What this machine has, and the cluster of RAY_ADDRESS; imports every installed inference library."""
    found = survey()
    if not (address := os.environ.get("RAY_ADDRESS")):
        return found
    try:
        cluster = offer_of(address)
    except TrtoptError as error:
        cluster = f"Ray cluster at {address}: {error.problem}"
    return msgspec.structs.replace(found, cluster=cluster)
