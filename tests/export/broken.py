"""Models of a user's own, right and wrong, for the tests of bad input."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


@torch.library.custom_op("trtopt_tests::strange", mutates_args=())
def strange(x: Tensor) -> Tensor:
    return x.clone()


@strange.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return strange(x)  # the line that an error should name


class FixedView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(x)
        return y.view(2, 8)


class FixedByBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 2:
            return x + 1
        return x


class FixedByTracing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(int(x.shape[0]), 2, 4).sum(1)


class Drops(nn.Module):
    """Behaves otherwise when it is traced: what a wrong translation looks like."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (1.0 if torch.compiler.is_exporting() or torch.jit.is_tracing() else 0.0)


def _example() -> dict[str, Tensor]:
    return {"x": torch.arange(24.0).reshape(3, 8)}


def good() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.Sequential(nn.Linear(8, 4), nn.ReLU()), _example()


def varying() -> tuple[nn.Module, dict[str, Tensor], dict[str, dict[int, str]]]:
    return nn.LayerNorm(8), {"x": torch.randn(2, 5, 8)}, {"x": {0: "batch", 1: "length"}}


class Encoder(nn.Module):
    """What exporters write for self-attention: Reshapes to heads, with the batch in them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.layer(self.embedding(ids))
        return out


def _encoder(axes: object) -> tuple[nn.Module, dict[str, Tensor], object]:
    torch.manual_seed(0)
    return Encoder().eval(), {"ids": torch.arange(10).reshape(2, 5)}, axes


def names_the_sequence() -> object:
    return _encoder({"ids": {1: "seq"}})


def fixes_the_batch() -> object:
    return _encoder({"ids": {0: None, 1: "seq"}})


def names_no_input() -> object:
    return _encoder({"mask": {1: "seq"}})


def names_no_axis() -> object:
    return _encoder({"ids": {2: "seq"}})


def names_an_axis_by_a_number() -> object:
    return _encoder({"ids": {1: 5}})


def names_no_axes() -> object:
    return _encoder({"ids": ["batch", "seq"]})


def unsupported() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(Strange())), _example()


def fixed_view() -> tuple[nn.Module, dict[str, Tensor]]:
    return FixedView(), {"x": torch.arange(16.0).reshape(2, 8)}


def fixed_by_branch() -> tuple[nn.Module, dict[str, Tensor]]:
    return FixedByBranch(), _example()


def fixed_by_tracing() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.Sequential(nn.Linear(8, 8), FixedByTracing()), _example()


def differs() -> tuple[nn.Module, dict[str, Tensor]]:
    return Drops(), _example()


def raises() -> None:
    raise RuntimeError("the weights are at home")


def only_a_module() -> nn.Module:
    return nn.Linear(8, 4)


def wrong_inputs() -> tuple[nn.Module, dict[str, Tensor]]:
    return nn.Linear(9, 4), _example()


class Branches(nn.Module):
    """One way or the other, by what `decide` makes of its input."""

    def __init__(self, decide: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.decide = decide
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.decide(x):
            return x * 2
        return x * 3


def branches_on_a_sum() -> tuple[nn.Module, dict[str, Tensor]]:
    return Branches(lambda x: x.sum() > 0), _example()  # the sum decides


def branches_in_generated_code() -> tuple[nn.Module, dict[str, Tensor]]:
    made: dict[str, Callable[[Tensor], bool]] = {}
    exec("def decide(x):\n    return bool(x.sum() > 0)", made)
    return Branches(made["decide"]).eval(), {"x": torch.ones(2, 8)}


def branches_on_an_item() -> tuple[nn.Module, dict[str, Tensor]]:
    return Branches(lambda x: x.max().item() > 0), _example()  # the item decides


def branches_on_an_integer() -> tuple[nn.Module, dict[str, Tensor]]:
    return Branches(lambda x: int(x[0, 0]) == 0), _example()  # the integer decides


def branches_on_an_array() -> tuple[nn.Module, dict[str, Tensor]]:
    return Branches(lambda x: x.numpy().mean() > 0), _example()  # the array decides


def branches_on_a_list() -> tuple[nn.Module, dict[str, Tensor]]:
    return Branches(lambda x: x[0].tolist()[0] == 0), _example()  # the list decides


def branches_on_a_member() -> tuple[nn.Module, dict[str, Tensor]]:
    return Branches(lambda x: 23.0 in x), _example()  # the member decides


def branches_on_a_size() -> tuple[nn.Module, dict[str, Tensor]]:
    return Branches(lambda x: x.shape[0] < 10), _example()  # the size decides


class Harmless(nn.Module):
    """Turns sizes and weights into Python values, and no input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        rows = [row * math.sqrt(x.shape[-1]) for row in x.T]
        return torch.stack(rows, -1) * (self.scale if self.scale > 0 else 1)


def harmless() -> tuple[nn.Module, dict[str, Tensor]]:
    return Harmless(), _example()


class Hidden(nn.Module):
    """A branch that no tracer sees: on a copy that was made behind its back."""

    def forward(self, x: Tensor) -> Tensor:
        first = ctypes.c_float.from_address(x.data_ptr()).value
        return x * (2 if first > 0 else 3)


def hidden() -> tuple[nn.Module, dict[str, Tensor]]:
    return Hidden(), {"x": torch.ones(3, 8)}


class Cond(nn.Module):
    """What an error recommends in place of a branch."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y * 3, (x,))


def cond() -> tuple[nn.Module, dict[str, Tensor]]:
    return Cond(), {"x": torch.ones(3, 8)}


class Where(nn.Module):
    """The other way to do without a branch."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x.sum() > 0, x * 2, x * 3)


def where() -> tuple[nn.Module, dict[str, Tensor]]:
    return Where(), {"x": torch.ones(3, 8)}


class Tree(nn.Module):
    def forward(self, x: Tensor) -> object:
        return {"mean": x.mean(1), "others": [x + 1, {"twice": 2 * x}]}


def tree() -> object:
    return Tree(), {"x": torch.randn(2, 4)}


def in_bf16() -> object:
    return nn.Linear(4, 4).bfloat16(), {"x": torch.randn(2, 4).bfloat16()}


def no_samples() -> object:
    return nn.Linear(4, 4), {"x": torch.randn(0, 4)}


class Silent(nn.Module):
    def forward(self, _x: Tensor) -> None:
        return None


def silent() -> object:
    return Silent(), {"x": torch.randn(2, 4)}


def not_a_number() -> object:
    module = nn.Linear(4, 4)
    nn.init.constant_(module.weight, math.nan)
    return module, {"x": torch.randn(2, 4)}
