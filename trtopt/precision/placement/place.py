"""All placement rules in their order."""

from __future__ import annotations

from trtopt.errors import UsageError
from trtopt.precision.placement import attention, between, residual, rest, weighted
from trtopt.precision.placement.plan import Draft, PlacementOptions, Plan
from trtopt.precision.placement.view import View

RULES = (weighted.apply, attention.apply, residual.apply, between.apply, rest.apply)


def place(view: View, options: PlacementOptions) -> Plan:
    """Decide for each node of floating-point numbers whether it is quantised, and on which edges Q/DQ go.

    Raises:
        UsageError: a pattern that fits no node.
    """
    for flag, patterns in (("--exclude", options.exclude), ("--include", options.include)):
        for pattern in patterns:
            alone = PlacementOptions(options.precision, (pattern,))
            if not any(alone.excludes(node) for node in view.nodes):
                raise UsageError(
                    f"{flag} {pattern}: no node has such a name or operator",
                    "give a node's name with * and ?, or an operator such as Conv",
                )
    draft = Draft(view, options)
    for rule in RULES:
        rule(draft)
    return draft.plan()
