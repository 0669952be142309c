"""What requests of a pool must look like where an engine's input has a vectorised format."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from tests.support.serving_pools import artifact
from trtopt.errors import DataError, UsageError
from trtopt.records import ShapeRange, TensorSpec
from trtopt.serving.engine_catalogue import Catalogue, Engine
from trtopt.serving.load_folder import offers_of

IMAGE = TensorSpec(name="x", dtype="int8", shape=("?", 3, 4, 4))
OUTPUT = TensorSpec(name="y", dtype="float32", shape=("?", 2))


def engine(layouts: dict[str, str]) -> Engine:
    built = artifact(8)
    shape = ShapeRange(min=(8, 3, 4, 4), opt=(8, 3, 4, 4), max=(8, 3, 4, 4))
    plan = msgspec.structs.replace(built.plan, shapes={"x": shape}, io_layouts=layouts)
    session = cast("Any", SimpleNamespace(inputs=(IMAGE,), outputs=(OUTPUT,)))
    changed = msgspec.structs.replace(built, plan=plan)
    return Engine(session, changed, offers_of(changed))


@pytest.mark.parametrize(
    ("layout", "stored"), [("chw4", (1, 4, 4, 4)), ("chw32", (1, 4, 4, 32)), ("hwc16", (4, 4, 16))]
)
def test_rows_come_in_the_engine_s_format_and_contexts_are_made_for_their_linear_shape(
    layout: str, stored: tuple[int, ...]
) -> None:
    catalogue = Catalogue([engine({"x": layout})])
    part = catalogue.part({"x": np.zeros((5, *stored), np.int8)})
    assert part.rows == 5
    assert catalogue.shapes(part.key, 8) == {"x": (8, 3, 4, 4)}
    for other in ((*stored[:-1], stored[-1] + 4), (3, 4, 4)):
        with pytest.raises(DataError, match=f"not in the engine's format {layout}"):
            catalogue.part({"x": np.zeros((5, *other), np.int8)})


def test_engines_of_other_formats_share_no_pool() -> None:
    with pytest.raises(UsageError, match="other formats"):
        Catalogue([engine({"x": "chw4"}), engine({"x": "chw32"})])
