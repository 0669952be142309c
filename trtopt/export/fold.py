"""BatchNorm folded into convolutions before weights are rounded to 16 bits.

PyTorch's exporters fold it anyway, from weights that were rounded already: what they write has been rounded
twice, and a trained ResNet's outputs are off by percents in BF16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

_TOLERANCE = 1e-3
"""How far outputs may move, of their root mean square, by sums in another order."""


def fold_batch_norms(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> None:
    """Fold each BatchNorm of an FP32 module in evaluation mode into the convolution in front of it, in place.

    Which is in front of which is seen in a run on `inputs`. Modules that are called more than once are left
    alone, and weights that are computed anew at each call; so are all if the outputs change, as when somebody
    else reads what a convolution makes, or if the module does not run, which the exporter will tell.
    """
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    from trtopt.export.subject import tensors_of

    with torch.no_grad():
        try:
            before = tensors_of(module(*inputs))
        except Exception:  # noqa: BLE001  (the user's code may raise anything)
            return
        pairs = _pairs(module, inputs)
        undo: list[tuple[str, torch.nn.Module]] = []
        for conv, norm in pairs:
            undo += [(name, module.get_submodule(name)) for name in (conv, norm)]
            (_, old), (_, batch_norm) = undo[-2:]
            transposed = isinstance(old, torch.nn.modules.conv._ConvTransposeNd)
            _set(module, conv, fuse_conv_bn_eval(old, batch_norm, transposed))
            _set(module, norm, torch.nn.Identity())
        if pairs and not _alike(before, tensors_of(module(*inputs))):
            for name, old in undo:
                _set(module, name, old)


def _pairs(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> list[tuple[str, str]]:
    """The names of each convolution and the BatchNorm that reads what it makes."""
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.conv import _ConvNd
    from torch.nn.utils.parametrize import is_parametrized

    calls: dict[str, list[tuple[torch.Tensor | None, torch.Tensor]]] = {}

    def noting(name: str) -> Any:
        return lambda _, taken, made: calls.setdefault(name, []).append(((*taken, None)[0], made))

    items = dict(module.named_modules())
    convs = [name for name, one in items.items() if isinstance(one, _ConvNd) and not is_parametrized(one)]
    norms = [name for name, one in items.items() if isinstance(one, _BatchNorm)]
    handles = [items[name].register_forward_hook(noting(name)) for name in (*convs, *norms)]
    try:
        module(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    once = {name: found[0] for name, found in calls.items() if len(found) == 1}
    made_by = {id(once[name][1]): name for name in convs if name in once}  # `calls` keeps the tensors alive
    return [
        (made_by[id(once[name][0])], name) for name in norms if name in once and id(once[name][0]) in made_by
    ]


def _alike(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> bool:
    return all(
        bool((new - old).double().square().mean() <= _TOLERANCE**2 * old.double().square().mean())
        for old, new in zip(before, after, strict=True)
        if old.is_floating_point()
    )


def _set(module: torch.nn.Module, name: str, item: torch.nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, item)
