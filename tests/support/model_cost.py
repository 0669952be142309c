"""What a model costs: its parameters, and the FLOPs of one sample. No weights are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtopt.export.source_module import construct, example
from trtopt.export.spec import ModelSpec


@dataclass(frozen=True)
class Cost:
    """`parameters` without buffers; `flops` of one sample, a multiply-add counted as two."""

    parameters: int
    flops: int


def cost(path: Path, spec: ModelSpec, variant: str) -> Cost:
    """Count on PyTorch's `meta` device, with the batch at 1 and other axes at `opt`.

    FLOPs are those of convolutions, matrix products (of LSTM layers too) and attention, as
    `torch.utils.flop_counter` counts them.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    module = construct(path, spec, variant, device="meta")
    sizes = spec.sizes_at(variant, {"batch": 1} if "batch" in spec.axes else {})
    inputs = [torch.from_numpy(array).to("meta") for array in example(path, spec, sizes).values()]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return Cost(sum(entry.numel() for entry in module.parameters()), counter.get_total_flops())
