"""All kinds of candidates, in the order in which equal ones are tried: a new one takes a module and a line."""

from __future__ import annotations

from trtopt.workflows.tune.kinds import (
    batch_size,
    build_lottery,
    builder_setting,
    precision,
    rewrite_rule,
    streams,
)

KINDS = (
    precision.KIND,
    batch_size.KIND,
    streams.KIND,
    builder_setting.KIND,
    rewrite_rule.KIND,
    build_lottery.KIND,
)
