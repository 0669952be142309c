"""Networks with seeded weights whose outputs still depend on their inputs.

BatchNorm of an untrained network normalises nothing: its mean is 0 and its variance 1 for any input. Through
dozens of layers the signal then vanishes (EfficientNet-B0's to 1e-13), and the outputs are constants, which
verify neither an export nor a precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def calibrate_batch_norms(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> None:
    """Give every BatchNorm of `module` the statistics of what reaches it from `inputs`, as training would.

    One pass in which each normalises by its batch (Ioffe and Szegedy 2015, arXiv:1502.03167), so that those
    behind see what they will see in evaluation.
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
