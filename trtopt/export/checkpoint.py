"""Loading a checkpoint into a module: a state dict of `torch.save`, or a safetensors file.

Nothing but tensors is unpickled, so a checkpoint from a stranger cannot run code.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from trtopt.errors import UsageError
from trtopt.export.imports import need

if TYPE_CHECKING:
    import torch

_SHOWN = 10
_WRAPPERS = ("state_dict", "model_state_dict", "model")


def load(module: torch.nn.Module, path: Path, *, strict: bool, unused: tuple[str, ...] = ()) -> None:
    """Copy the checkpoint's tensors into the module, each cast to the type that the module has.

    Keys that match a pattern of `unused` may be in the file though the module has none of them.
    """
    found = read(path)
    wanted = module.state_dict()
    missing = [key for key in wanted if key not in found]
    unexpected = [
        key for key in found if key not in wanted and not any(fnmatchcase(key, pattern) for pattern in unused)
    ]
    shapes = [
        f"{key}: {_shape(found[key])} in the file, {_shape(wanted[key])} in the model"
        for key in wanted
        if key in found and found[key].shape != wanted[key].shape
    ]
    problems = _listed("of another shape", shapes)
    if strict:
        problems += _listed("missing", missing) + _listed("unexpected", unexpected)
    if len(missing) == len(wanted):
        problems = [f"none of the model's {len(wanted)} keys is in it", *problems]
    if problems:
        raise UsageError(
            f"{path} does not fit the model:\n" + "\n".join(problems),
            "give the model's own checkpoint" + ("" if shapes else ", or load what fits with --no-strict"),
        )
    module.load_state_dict({key: found[key] for key in wanted if key in found}, strict=False)


def read(path: Path) -> dict[str, torch.Tensor]:
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
            f"{path} holds values that are not plain arrays of numbers:\n" + "\n".join(_listed("such", odd)),
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


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


def _listed(what: str, keys: list[str]) -> list[str]:
    """One line that counts the keys and names the first ones."""
    if not keys:
        return []
    more = f", … and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return [f"  {len(keys)} {what}: {', '.join(keys[:_SHOWN])}{more}"]
