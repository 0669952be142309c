"""All rules, in the order in which they run: what cleans first, what depends on a clean graph after it."""

from __future__ import annotations

from trtopt.rewrite.rule import Rule
from trtopt.rewrite.rules import (
    cast_chain,
    clamp_chain,
    drop_unused,
    erase_arithmetic,
    erase_identity,
    erase_shuffle,
    fold_batchnorm,
    fold_constants,
    fold_scale,
    fold_scale_before,
    fold_shapes,
    gather_axis0,
    pad_into_conv,
    reshape_chain,
    share_equal,
    transpose_chain,
    transpose_constant,
    transpose_reduce,
)

RULES: tuple[Rule, ...] = (
    erase_identity.RULE,
    fold_shapes.RULE,
    fold_constants.RULE,
    drop_unused.RULE,
    erase_arithmetic.RULE,
    cast_chain.RULE,
    clamp_chain.RULE,
    transpose_constant.RULE,
    transpose_chain.RULE,
    transpose_reduce.RULE,
    reshape_chain.RULE,
    erase_shuffle.RULE,
    gather_axis0.RULE,
    pad_into_conv.RULE,
    fold_batchnorm.RULE,
    fold_scale.RULE,
    fold_scale_before.RULE,
    share_equal.RULE,
)
