"""`Subject`: a module, ready to be exported, with inputs for any sizes of its axes.

Made from a model file (`from_spec`) or from a callable of the user's own (`from_callable`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trtopt.errors import BackendMissingError, UsageError
from trtopt.export.spec import Axis, Exporter, Input, ModelSpec, Sizes, read_spec
from trtopt.extras import install
from trtopt.files.user_code import function_of_user, where

if TYPE_CHECKING:
    import torch


def need(*modules: str, line: str = install("export")) -> None:
    """Raise unless the modules are installed; nothing is imported."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise BackendMissingError(f"{module} is not installed", line)


def sibling_function(path: Path, reference: str) -> Callable[..., Any]:
    """`FILE.py:FUNCTION` of the folder that the model file `path` lies in.

    Files of one folder may import one another by name.
    """
    file, _, name = reference.partition(":")
    if not (path.parent / file).is_file() or not name:
        raise UsageError(
            f"{path}: {reference!r} does not name FILE.py:FUNCTION next to it", "correct the field"
        )
    return function_of_user(str(path.parent / reference))


def calibrate_batch_norms(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> None:
    """Give every BatchNorm of `module` the statistics of what reaches it from `inputs`, as training would.

    BatchNorm of an untrained network normalises nothing: its mean is 0 and its variance 1 for any input.
    Through dozens of layers the signal then vanishes (EfficientNet-B0's to 1e-13), and the outputs are
    constants, which verify neither an export nor a precision. In one pass each normalises by its batch (Ioffe
    and Szegedy 2015, arXiv:1502.03167), so that those behind see what they will see in evaluation.
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    norms = [one for one in module.modules() if isinstance(one, _BatchNorm) and one.track_running_stats]
    if not norms:
        return
    usual = [(norm, norm.momentum, norm.training) for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    with torch.no_grad():
        module(*inputs)
    for norm, momentum, training in usual:
        norm.momentum = momentum
        norm.train(training)


Arrays = dict[str, NDArray[Any]]

USER_BATCH = Axis(min=1, opt=8, max=64)
"""The sizes of every axis of a user's callable that varies: the first of each input, and those it names."""
_AXES = "{input name: {axis number: axis name}}, None for an axis 0 that is fixed"


@dataclass(frozen=True)
class Subject:
    """What is exported. `inputs` are in the order of the module's arguments."""

    name: str
    module: torch.nn.Module
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    axes: Mapping[str, Axis]
    example: Callable[[Sizes], Arrays]
    """Inputs for the given sizes of the axes; the same for the same sizes."""
    others: Callable[[Sizes], dict[str, Arrays]]
    """Further inputs of these sizes, by what they are, in words."""
    unused: tuple[str, ...] = ()
    """Patterns of keys of its checkpoints that it has no use for."""
    exporter: Exporter = "dynamo"
    opset: int = 17
    tolerance: float = 1e-3
    mismatch: float = 0.0


def from_spec(path: Path, variant: str, *, use_own_weights: bool = True) -> Subject:
    """The module of a model file, made with its seed, in evaluation mode.

    The `full` variant of a model that comes with weights gets them; others get calibrated BatchNorms. Neither
    if `use_own_weights` is false, because a checkpoint is to be loaded.
    """
    spec = read_spec(path)
    if variant not in spec.variants:
        raise UsageError(
            f"{path.stem} has no variant {variant!r}", f"it has {', '.join(sorted(spec.variants))}"
        )
    if spec.construct is None:
        raise UsageError(
            f"{path.stem} is an ONNX file already, {path.parent / str(spec.onnx)}",
            "use that file: there is nothing to export",
        )
    need(
        *(package.replace("-", "_") for package in spec.requires),  # their modules, by the usual rule
        line=f"pip install {' '.join(spec.requires)}",
    )
    module = construct(path, spec, variant)
    if spec.checkpoint and variant == "full" and use_own_weights:
        load_checkpoint(
            module, Path(sibling_function(path, spec.checkpoint)()), strict=True, unused=spec.unused
        )
    elif use_own_weights:
        calibrate_batch_norms(module, _seeded_inputs(path, spec, variant))
    return Subject(
        name=path.stem,
        module=module,
        inputs=spec.inputs,
        outputs=spec.outputs,
        axes=spec.axes_of(variant),
        example=lambda sizes: example(path, spec, spec.sizes_at(variant, sizes)),
        others=lambda sizes: _others(path, spec, spec.sizes_at(variant, sizes)),
        unused=spec.unused,
        exporter=spec.exporter,
        opset=spec.opset,
        tolerance=spec.tolerance,
        mismatch=spec.mismatch,
    )


def _seeded_inputs(path: Path, spec: ModelSpec, variant: str) -> list[torch.Tensor]:
    """Two samples at the sizes that the model is meant for."""
    import torch

    axes = spec.axes_of(variant)
    sizes = {name: axis.near(1) if name == "batch" else axis.opt for name, axis in axes.items()}
    return [torch.from_numpy(array) for array in example(path, spec, spec.sizes_at(variant, sizes)).values()]


def construct(path: Path, spec: ModelSpec, variant: str, device: str = "cpu") -> torch.nn.Module:
    """The variant's module with seeded weights; on device `meta` it has shapes and no memory."""
    import torch

    build = sibling_function(path, str(spec.construct))
    torch.manual_seed(spec.seed)
    try:
        with torch.device(device):
            module = build(**spec.variants[variant].arguments)
    except Exception as error:
        raise UsageError(f"{path}: {spec.construct} failed: {where(error)}", "correct it") from error
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"{path}: {spec.construct} returned {type(module).__name__}, not a torch.nn.Module", "correct it"
        )
    return module.eval().requires_grad_(False)


def example(path: Path, spec: ModelSpec, sizes: Sizes, *, draw: int = 0) -> Arrays:
    """Seeded example inputs at the given sizes of every axis: {input name: array of the input's dtype}."""
    rng = np.random.default_rng(spec.seed + draw)
    if spec.example is None:
        return {entry.name: _random(entry, sizes, rng) for entry in spec.inputs}
    made: Arrays = sibling_function(path, spec.example)(rng, sizes)
    return {entry.name: np.asarray(made[entry.name], entry.dtype) for entry in spec.inputs}


def _others(path: Path, spec: ModelSpec, sizes: Sizes) -> dict[str, Arrays]:
    """Other draws: what is not drawn may be nothing that the model takes."""
    return {f"of draw {draw}": example(path, spec, sizes, draw=draw) for draw in (1, 2)}


def varied(arrays: Arrays) -> dict[str, Arrays]:
    """Inputs that may take other branches; what is no float keeps its values, in another order."""
    if not any(array.dtype.kind == "f" for array in arrays.values()):
        return {"reversed": {name: _reversed(array) for name, array in arrays.items()}}
    changes: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
        "negated": np.negative,
        "times 2": lambda array: array * 2,
        "times 0": np.zeros_like,
    }
    return {
        words: {
            name: change(array) if array.dtype.kind == "f" else _reversed(array)
            for name, array in arrays.items()
        }
        for words, change in changes.items()
    }


def _reversed(array: NDArray[Any]) -> NDArray[Any]:
    return array[..., ::-1].copy() if array.ndim else array


def _random(entry: Input, sizes: Sizes, rng: np.random.Generator) -> NDArray[Any]:
    shape = entry.shape_at(sizes)
    if entry.dtype.startswith(("int", "uint")):
        below = sizes[entry.below] if isinstance(entry.below, str) else (entry.below or 2)
        return rng.integers(0, below, shape).astype(entry.dtype)
    if entry.dtype == "bool":
        return rng.random(shape) < 0.5
    return rng.standard_normal(shape).astype(entry.dtype)


def from_callable(reference: str) -> Subject:
    """The module that `package.module:callable` returns with its example inputs.

    The callable takes no arguments and returns `(module, {input name: example tensor})`. Axis 0 of every
    input is `batch`. A third element `{input name: {axis number: axis name}}` names further axes that vary,
    or axis 0 otherwise; None fixes it. Inputs are passed to the module in the order given. Examples for other
    sizes repeat or cut the given ones along the varying axes.
    """
    import torch

    function = function_of_user(reference)
    try:
        made = function()
    except Exception as error:
        raise UsageError(f"{reference} raised {where(error)}", "correct the callable") from error
    parts = made if isinstance(made, tuple) else (made,)
    if (
        len(parts) not in (2, 3)
        or not isinstance(parts[0], torch.nn.Module)
        or not all(isinstance(part, Mapping) for part in parts[1:])
        or not parts[1]
        or not all(isinstance(tensor, torch.Tensor) for tensor in parts[1].values())
    ):
        raise UsageError(
            f"{reference} returned {_describe(made)}",
            "return (module, {input name: example tensor}), "
            f"and third, if axes other than a leading batch vary, {_AXES}",
        )
    module = parts[0].eval().to(torch.float32)  # NumPy has no BF16, and all is exported in FP32
    tensors = {
        str(name): tensor.detach().to(torch.float32 if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in parts[1].items()
    }
    named = parts[2] if len(parts) == 3 else {}
    _check_axes(named, tensors, reference)
    inputs = tuple(_input_of(name, tensor, named.get(name, {})) for name, tensor in tensors.items())
    names = {axis for entry in inputs for axis in entry.shape if isinstance(axis, str)}
    given = {name: tensor.numpy() for name, tensor in tensors.items()}

    def sized(sizes: Sizes) -> Arrays:
        return {entry.name: _resized(given[entry.name], entry, sizes) for entry in inputs}

    return Subject(
        name=reference.rpartition(":")[2],
        module=module,
        inputs=inputs,
        outputs=_output_names(module, tensors, reference),
        axes=dict.fromkeys(sorted(names), USER_BATCH),
        example=sized,
        others=lambda sizes: varied(sized(sizes)),
    )


def _describe(made: object) -> str:
    if isinstance(made, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in made)}"
    return f"a {type(made).__name__}"


def _check_axes(named: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], reference: str) -> None:
    """See that every axis that is named is one."""
    for name, axes in named.items():
        rank = tensors[name].ndim if name in tensors else 0
        problem = "" if name in tensors else f"there is no input {name!r}"
        for axis, given in axes.items() if isinstance(axes, Mapping) and not problem else ():
            if axis not in range(rank) or not (given is None or (isinstance(given, str) and given)):
                problem = f"{axis!r}: {given!r} names no axis of {name!r}, which has {rank}"
        if problem or not isinstance(axes, Mapping):
            raise UsageError(
                f"{reference}: {problem or f'{axes!r} are no axes of {name!r}'}",
                f"the third element is {_AXES}",
            )


def _input_of(name: str, tensor: torch.Tensor, named: Mapping[int, str | None]) -> Input:
    varying = {0: "batch", **named}
    if 0 in (size for axis, size in enumerate(tensor.shape) if varying.get(axis)):
        raise UsageError(
            f"input {name!r}: the example has the shape {list(tensor.shape)}", "give one not empty"
        )
    shape = tuple(varying.get(axis) or size for axis, size in enumerate(tensor.shape))
    return Input(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=shape)


def _resized(array: NDArray[Any], entry: Input, sizes: Sizes) -> NDArray[Any]:
    for axis, size in enumerate(entry.shape_at(sizes)):
        array = np.take(array, np.arange(size), axis=axis, mode="wrap")
    return array


def _output_names(
    module: torch.nn.Module, tensors: dict[str, torch.Tensor], reference: str
) -> tuple[str, ...]:
    """`output` of one tensor, `output_0`, … of several; keys of a dictionary of tensors stay."""
    import torch

    try:
        with torch.no_grad():
            made = module(*tensors.values())
    except Exception as error:
        raise UsageError(
            f"{reference}: the module failed on its example inputs: {where(error)}",
            "the inputs must be in the order of forward's arguments",
        ) from error
    if isinstance(made, Mapping) and all(isinstance(one, torch.Tensor) for one in made.values()):
        return tuple(str(name) for name in made)
    count = len(tensors_of(made))
    if not count:
        raise UsageError(
            f"{reference}: the module returned no tensor, but {_describe(made)}",
            "return a tensor, or several in a tuple, list or dictionary",
        )
    return ("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))


def tensors_of(made: object) -> list[torch.Tensor]:
    """The tensors of a module's output, nested tuples, lists and mappings flattened in order."""
    import torch

    if isinstance(made, torch.Tensor):
        return [made]
    if isinstance(made, Mapping):
        made = list(made.values())
    if isinstance(made, (tuple, list)):
        return [tensor for part in made for tensor in tensors_of(part)]
    return []


# Loading a checkpoint into a module: a state dict of `torch.save`, or a safetensors file.
#
# Nothing but tensors is unpickled, so a checkpoint from a stranger cannot run code.


_SHOWN, _LINES = 1000, 10
"""Characters of a list of keys, and how many lines there are of keys of another shape."""
_WRAPPERS = ("state_dict", "model_state_dict", "model")


def load_checkpoint(
    module: torch.nn.Module, path: Path, *, strict: bool, unused: tuple[str, ...] = ()
) -> None:
    """Copy the checkpoint's tensors into the module, each cast to the type that the module has.

    Keys that match a pattern of `unused` may be in the file though the module has none of them.
    """
    found = read_checkpoint(path)
    wanted = module.state_dict()
    held = {
        key: tensor
        for key, tensor in found.items()
        if key in wanted or not any(fnmatchcase(key, pattern) for pattern in unused)
    }
    try:
        if wanted.keys().isdisjoint(held):
            raise RuntimeError(f"none of the model's {len(wanted)} keys is in it")
        module.load_state_dict(held, strict=strict)
    except RuntimeError as error:
        problems = [shorten(line, _SHOWN, placeholder=" …") for line in str(error).splitlines()]
        fits = strict and "size mismatch" not in str(error) and not wanted.keys().isdisjoint(held)
        if len(problems) > _LINES:
            problems[_LINES:] = [f"… and {len(problems) - _LINES} more"]
        raise UsageError(
            f"{path} does not fit the model: " + "\n  ".join(problems),
            "give the model's own checkpoint" + (", or load what fits with --no-strict" if fits else ""),
        ) from None


def read_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint by name; `{"state_dict": …}` and the like are unwrapped."""
    import torch

    if not path.is_file():
        raise UsageError(f"{path}: no such checkpoint", "give a file of torch.save or a .safetensors file")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  (a file that is damaged, or made to be, can raise anything)
        reason = str(error).partition("\n")[0] or "it is empty or cut short"
        raise UsageError(
            f"{path}: not a state dict that can be read safely ({reason})",
            "save module.state_dict() alone, or convert it to safetensors",
        ) from None
    for wrapper in _WRAPPERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapper), Mapping):
            loaded = loaded[wrapper]
    if not isinstance(loaded, Mapping) or not all(
        isinstance(entry, torch.Tensor) for entry in loaded.values()
    ):
        raise UsageError(f"{path}: holds no state dict", "save module.state_dict()")
    tensors = {str(key).removeprefix("module."): tensor for key, tensor in loaded.items()}
    if len(tensors) < len(loaded):
        raise UsageError(f"{path}: holds keys twice, with and without 'module.'", "save module.state_dict()")
    if odd := [f"{key}: {kind}" for key, tensor in tensors.items() if (kind := _oddity(tensor))]:
        raise UsageError(
            f"{path} holds values that are not plain arrays of numbers: "
            + shorten(", ".join(odd), _SHOWN, placeholder=" …"),
            "save module.state_dict() of the model in floats, its tensors dense",
        )
    return tensors


def _oddity(tensor: torch.Tensor) -> str:
    """What keeps its values from being copied into a module's as they are; empty if nothing does."""
    import torch

    if tensor.is_quantized:
        return f"quantised ({tensor.dtype})"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return "nested" if tensor.is_nested else f"sparse ({tensor.layout})"
    if tensor.device.type != "cpu":
        return f"on device {tensor.device}"
    return f"complex ({tensor.dtype})" if tensor.is_complex() else ""


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    need("safetensors", line="pip install safetensors")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (SafetensorError, KeyError, ValueError, RuntimeError, OSError) as error:
        raise UsageError(
            f"{path}: not a safetensors file ({error})", "copy it again: it may be incomplete"
        ) from None
    return tensors
