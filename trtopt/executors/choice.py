"""The executor that a recipe names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trtopt.device.api import EngineBuilder
from trtopt.device.backends import places_to_build
from trtopt.executors.api import Executor, LocalExecutor
from trtopt.recipe import LOCAL, Recipe


@contextmanager
def open_executor(recipe: Recipe, builder: EngineBuilder, note: Callable[[str], None]) -> Iterator[Executor]:
    """What runs the recipe's jobs; `note` hears which nodes take part."""
    if recipe.executor == LOCAL:
        name = builder.backend.name
        yield LocalExecutor(places_to_build(name, recipe.jobs), name)
        return
    from trtopt.executors.ray.connection import connected
    from trtopt.executors.ray.executor import RayExecutor

    with connected(recipe.executor):
        yield RayExecutor(builder, gpu_model=recipe.gpu_model, retries=recipe.retries, note=note)
