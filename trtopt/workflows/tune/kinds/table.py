"""All kinds of candidates, in the order in which equal ones are tried."""

from __future__ import annotations

from trtopt.workflows.tune.kinds import (
    batch_size,
    batch_split,
    build_lottery,
    builder_setting,
    io_types,
    placement,
    precision,
    region,
    rewrite_rule,
    streams,
)

KINDS = (
    precision.KIND,
    placement.KIND,
    region.KIND,
    io_types.KIND,
    batch_size.KIND,
    streams.KIND,
    builder_setting.KIND,
    batch_split.KIND,
    rewrite_rule.KIND,
    build_lottery.KIND,
)
