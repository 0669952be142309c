"""What all threads that submit jobs share."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtopt.executors.neighbours import Neighbours
from trtopt.executors.ray.mail import Mail
from trtopt.executors.ray.nodes import Nodes
from trtopt.executors.ray.object_store import ObjectStore


@dataclass(frozen=True)
class Cluster:
    """A cluster as the driver has it."""

    nodes: Nodes
    mail: Mail
    store: ObjectStore = field(default_factory=ObjectStore)
    neighbours: Neighbours = field(default_factory=Neighbours)
