"""Optimisation profiles: added to a builder's config, read from an engine, selected for a context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trtopt.device.api import Device
from trtopt.errors import BuildError, DeviceError, UsageError
from trtopt.records import BuildPlan, Shape, ShapeRange, suited
from trtopt.targets import Target


def add_profiles(trt: Any, target: Target, builder: Any, network: Any, config: Any, plan: BuildPlan) -> None:
    """Give the builder's config the plan's profiles, in its order; inputs of one shape become static."""
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    for tensor in tensors:
        if tensor.is_shape_tensor:
            raise UsageError(
                f"input {tensor.name!r} is a shape tensor: its values decide other tensors' shapes",
                "make it a constant in the model, or derive the shapes from another input's shape",
            )
        if plan.shapes[tensor.name].is_fixed:
            tensor.shape = plan.shapes[tensor.name].min  # a static network, not merely a narrow profile
    for wanted in plan.profiles:
        profile = builder.create_optimization_profile()
        for tensor in tensors:
            shapes = wanted.shapes[tensor.name]
            profile.set_shape(tensor.name, shapes.min, shapes.opt, shapes.max)
        if config.add_optimization_profile(profile) < 0:
            raise BuildError(
                "TensorRT refuses the requested shapes",
                "see whether every --shape fits the model's own shapes",
            )
    sharing = target.profile_sharing
    if sharing is not None and not all(wanted.is_fixed for wanted in plan.shapes.values()):
        config.set_preview_feature(getattr(trt.PreviewFeature, sharing), True)


def profiles_of(engine: Any, inputs: Sequence[str]) -> tuple[dict[str, ShapeRange], ...]:
    """What each profile of an engine admits, for its inputs by name; one at least."""
    return tuple(
        {name: _range(engine.get_tensor_profile_shape(name, index)) for name in inputs}
        for index in range(engine.num_optimization_profiles)
    )


def _range(shapes: Sequence[Sequence[int]]) -> ShapeRange:
    low, best, high = map(tuple, shapes)
    return ShapeRange(min=low, opt=best, max=high)


def profile_for(profiles: Sequence[Mapping[str, ShapeRange]], shapes: Mapping[str, Shape]) -> int:
    """The index of the profile that suits the shapes: see `records.profiles.suited`."""
    wanted = {name: tuple(shapes[name]) for name in profiles[0]}
    found = suited(profiles, wanted)
    if found is not None:
        return found
    refused = [name for name, shape in wanted.items() if not any(one[name].admits(shape) for one in profiles)]
    name = refused[0] if refused else next(iter(wanted))
    ranges = ", ".join(dict.fromkeys(f"{one[name].min} to {one[name].max}" for one in profiles))
    raise UsageError(
        f"input {name!r}: shape {wanted[name]} is outside what the engine was built for ({ranges})",
        "choose a batch or shape within it, or build an engine for this one",
    )


def set_profile(context: Any, index: int, device: Device, last_error: Callable[[], str]) -> None:
    """Have a new context use a profile, before its shapes are set; what that enqueues is waited for."""
    stream = device.stream()
    try:
        if not context.set_optimization_profile_async(index, stream.handle):
            raise DeviceError(
                f"optimisation profile {index} cannot be used: {last_error()}",
                "build the engine again, or one engine per batch size, which needs no profiles",
            )
        stream.synchronize()
    finally:
        stream.close()
