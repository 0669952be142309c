"""`transpose-merged` against NumPy: whatever the lengths, the one Transpose is the three nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from hypothesis import example, given, strategies as st
from numpy.typing import NDArray

from trtopt.rewrite.rules.transpose_merged import RULE
from trtopt.rewrite.scope import Context, Scope
from trtopt.targets import target_named

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Chain:
    """Reshape to `merged`, Transpose by `perm`, Reshape to `split` of x, of which the model tells `told`."""

    told: tuple[int | str | None, ...]
    lengths: tuple[int, ...]
    merged: tuple[int, ...]
    perm: tuple[int, ...] | None
    split: tuple[int, ...]
    others: tuple[int, ...] = ()
    """Other lengths that x may have by what the model tells."""
    is_plain: bool = False
    """Whether whole axes, all known and longer than 1, move."""

    def order(self) -> list[int] | None:
        """The axes that the rule finds, None where it declines."""
        x, a, b, y = (gs.Variable(name, np.float32) for name in "xaby")
        x.shape = list(self.told)
        merged, split = (gs.Constant(n, np.array(v)) for n, v in (("m", self.merged), ("s", self.split)))
        turn = gs.Node("Transpose", "t", {} if self.perm is None else {"perm": list(self.perm)}, [a], [b])
        nodes = [
            gs.Node("Reshape", "r", {}, [x, merged], [a]),
            turn,
            gs.Node("Reshape", "l", {}, [b, split], [y]),
        ]
        graph = gs.Graph(nodes, inputs=[x], outputs=[y], opset=17)
        (match,) = RULE.find(Scope(graph, Context(target_named("10"), 17, Path())))
        order: list[int] | None = match.parts["order"]
        return order

    def __call__(self, x: Ints) -> Ints:
        """What ONNX makes of x.

        Raises:
            ValueError: x has other lengths than the shapes take.
        """
        return _reshaped(_reshaped(x, self.merged).transpose(self.perm), self.split)


def _reshaped(x: Ints, shape: Sequence[int]) -> Ints:
    return x.reshape([axis or x.shape[place] for place, axis in enumerate(shape)])


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Whole axes that move, or axes that are cut; lengths of 1 and unknown ones, copied and open axes."""
    lengths = draw(st.lists(st.sampled_from([2, 3, 4, 6, 1]), min_size=1, max_size=5))
    rank = len(lengths)
    ends = [*sorted(draw(st.sets(st.integers(1, rank - 1)) if rank > 1 else st.just(set()))), rank]
    runs = [list(range(start, end)) for start, end in zip([0, *ends], ends, strict=False)]
    if draw(st.integers(0, 3)) == 0:
        runs.insert(draw(st.integers(0, len(runs))), [])  # an axis of length 1 that x has not
    is_whole = draw(st.integers(0, 3)) > 0
    merged = [prod(lengths[axis] for axis in run) for run in runs]
    if not is_whole:
        merged = draw(st.permutations(merged))
    perm = draw(st.one_of(st.none(), st.permutations(range(len(merged)))))
    turned = range(len(merged))[::-1] if perm is None else perm
    order = [axis for place in turned for axis in runs[place]]
    split = [lengths[axis] for axis in (order if is_whole else draw(st.permutations(order)))]
    is_known = draw(st.booleans())
    told = [length if is_known else draw(st.sampled_from([length, "N", None])) for length in lengths]
    return Chain(
        tuple(told),
        tuple(lengths),
        tuple(_veiled(draw, merged, lengths)),
        None if perm is None else tuple(perm),
        tuple(_veiled(draw, split, [merged[place] for place in turned])),
        tuple(axis if isinstance(axis, int) else draw(st.integers(0, 6)) for axis in told),
        is_whole and all(runs) and told == lengths and min(lengths) > 1,
    )


def _veiled(draw: st.DrawFn, shape: Sequence[int], before: Sequence[int]) -> list[int]:
    """The shape as a model may ask for it: lengths that are there already copied by 0, one open by -1."""
    veiled: list[Any] = [
        draw(st.sampled_from([axis, 0])) if place < len(before) and before[place] == axis else axis
        for place, axis in enumerate(shape)
    ]
    place = draw(st.integers(-1, len(veiled) - 1))
    return veiled if place < 0 else [*veiled[:place], -1, *veiled[place + 1 :]]


@given(chains())
@example(Chain((2, None, None), (2, 3, 3), (-1, 0), (1, 0), (0, 2, -1), others=(2, 3, 4)))
def test_one_transpose_is_what_the_three_nodes_are(chain: Chain) -> None:
    order = chain.order()
    assert order is not None or not chain.is_plain
    for lengths in (chain.lengths, chain.others):
        x = np.arange(prod(lengths)).reshape(lengths)
        try:
            wanted = chain(x)
        except ValueError:  # other lengths than the model takes
            continue
        if order is not None:
            np.testing.assert_array_equal(x.transpose(order), wanted, strict=True)
