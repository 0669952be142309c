"""BatchNorm folded into convolutions before weights are rounded to 16 bits.

PyTorch's exporters fold it anyway, from weights that were rounded already: what they write has been rounded
twice, and a trained ResNet's outputs are off by percents in BF16.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def fold_batch_norms(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> None:
    """Fold each BatchNorm of an FP32 module in evaluation mode into the convolution in front of it, in place.

    A run on `inputs` shows which is in front of which, and that nothing else reads the tensor between them.
    Modules that are called more than once stay, and so do weights that are computed at each call. If the
    module does not run, all stay: the exporter will report the error.
    """
    import torch
    from torch.nn.modules.conv import _ConvTransposeNd
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    try:
        with torch.no_grad():
            pairs = _pairs(module, inputs)
    except Exception:  # noqa: BLE001  (the user's code may raise anything)
        return
    for conv, norm in pairs:
        before, batch_norm = module.get_submodule(conv), module.get_submodule(norm)
        fused = fuse_conv_bn_eval(before, batch_norm, isinstance(before, _ConvTransposeNd))
        _set(module, conv, fused.requires_grad_(False))
        _set(module, norm, torch.nn.Identity())


def _pairs(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> list[tuple[str, str]]:
    """The names of each convolution and the BatchNorm that is the only reader of its output."""
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.conv import _ConvNd
    from torch.nn.utils.parametrize import is_parametrized
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    items = dict(module.named_modules())
    convs = [name for name, one in items.items() if isinstance(one, _ConvNd) and not is_parametrized(one)]
    norms = [name for name, one in items.items() if isinstance(one, _BatchNorm)]
    if not convs or not norms:
        return []
    calls: Counter[str] = Counter()
    made: dict[int, tuple[str, torch.Tensor]] = {}  # which keeps the tensors alive, and their ids their own
    reads: Counter[int] = Counter()
    taken: dict[str, int] = {}

    class Reads(TorchDispatchMode):  # type: ignore[misc]
        """Counts the operations that read what convolutions made."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            reads.update(id(one) for one in tree_leaves((args, kwargs)) if id(one) in made)
            return func(*args, **(kwargs or {}))

    def note_conv(name: str) -> Any:
        def note(_: Any, __: Any, out: torch.Tensor) -> None:
            calls[name] += 1
            made[id(out)] = name, out

        return note

    def note_norm(name: str) -> Any:
        def note(_: Any, given: tuple[torch.Tensor, ...]) -> None:
            calls[name] += 1
            taken[name] = id(given[0]) if given else 0

        return note

    handles = [items[name].register_forward_hook(note_conv(name)) for name in convs]
    handles += [items[name].register_forward_pre_hook(note_norm(name)) for name in norms]
    try:
        with Reads():
            module(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    found = [(made[taken[name]][0], name) for name in norms if taken.get(name) in made]
    return [pair for pair in found if calls[pair[0]] == calls[pair[1]] == 1 == reads[taken[pair[1]]]]


def _set(module: torch.nn.Module, name: str, item: torch.nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, item)
