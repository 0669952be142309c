"""Formats of inputs and outputs, against TensorRT's Python API, version by version."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.support.scripted_device.device import ScriptedDevice
from tests.support.trt_behaviour import IMAGES
from tests.support.trt_exercise import SHAPES, VERSIONS, build, each_version, load, target
from tests.support.trt_surface import Surface
from trtopt.errors import BuildError
from trtopt.records.tensors import TYPES, VECTORS
from trtopt.targets import NUMPY_TYPES

NAME = IMAGES[0]


@each_version
def test_types_and_formats_of_the_table_are_names_of_the_binding(dump: str) -> None:
    surface = Surface(dump)
    formats = target(dump).io_formats
    types = {numpy: name for name, numpy in NUMPY_TYPES.items()}
    assert formats.keys() <= set(TYPES.values())
    assert {types[dtype] for dtype in formats} <= surface.api["enums"]["DataType"].keys()
    named = {layout.upper() for layouts in formats.values() for layout in layouts}
    assert named <= surface.api["enums"]["TensorFormat"].keys()
    assert {layout for layouts in formats.values() for layout in layouts} <= VECTORS.keys()


@pytest.mark.parametrize("layout", sorted(VECTORS))
@each_version
def test_the_builder_allows_one_format_by_its_bit(dump: str, layout: str) -> None:
    surface = Surface(dump)
    tensors: list[Any] = []
    real = surface.make

    def remembering(kind: str, *arguments: Any, **state: Any) -> Any:
        made = real(kind, *arguments, **state)
        if kind == "ITensor":
            tensors.append(made)
        return made

    surface.make = remembering  # type: ignore[method-assign]
    built = build(surface, io_layouts={NAME: layout})
    seen = [one._state["allowed_formats"] for one in tensors if "allowed_formats" in one._state]
    assert seen == [1 << surface.api["enums"]["TensorFormat"][layout.upper()]]
    assert built.config["io_formats"] == f"{NAME}:{layout.upper()}"


@each_version
def test_a_format_for_no_tensor_of_the_network_is_refused(dump: str) -> None:
    with pytest.raises(BuildError, match="--io other: the network has no such"):
        build(Surface(dump), io_layouts={"other": "chw4"})


@pytest.mark.parametrize(("layout", "stored"), [("CHW32", (8, 1, 8, 8, 32)), ("HWC8", (8, 8, 8, 8))])
@pytest.mark.parametrize("dump", VERSIONS)
def test_a_context_has_room_for_the_padding_of_its_formats(
    dump: str, layout: str, stored: tuple[int, ...]
) -> None:
    surface = Surface(dump)
    surface.returns["ICudaEngine.get_tensor_format"] = lambda _engine, name: surface.member(
        "TensorFormat", layout if name == NAME else "LINEAR"
    )
    session = load(surface, device=ScriptedDevice())
    bindings = {one.name: one for one in session.context(SHAPES).bindings}
    assert bindings[NAME].shape == SHAPES[NAME]
    assert bindings[NAME].stored_shape == stored
    assert bindings[NAME].nbytes == math.prod(stored) * np.dtype(np.float32).itemsize
    assert {one.layout for one in bindings.values() if one.name != NAME} == {"nchw"}
