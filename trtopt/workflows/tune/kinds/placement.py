"""Where Q/DQ go in an INT8 graph: residual Adds behind matrix products that read INT8."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.inspect.graph import QUANTISE, Graph
from trtopt.records.quantisation import PLAIN_RESIDUALS, RESIDUALS
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior

_SAVED = 0.3
"""Of the time of the layers with such an Add, what reading INT8 saves if it works."""


def _changes(situation: Situation) -> Iterator[Change]:
    recipe, evidence = situation.recipe, situation.evidence
    is_int8 = recipe.precision in ("int8", "best") and (situation.selected or "int8").startswith("int8")
    adds = _residuals(evidence.graph) if is_int8 and situation.data is not None else ()
    if not adds or recipe.residuals != PLAIN_RESIDUALS:
        return
    share = evidence.share_of(evidence.covering(adds))
    gain = min(_SAVED * share, KIND.prior.gain) if evidence.layers else KIND.prior.gain
    for residuals in RESIDUALS:
        if residuals != PLAIN_RESIDUALS:
            yield Change(
                "placement",
                f"residuals={residuals}",
                recipe={"residuals": residuals},
                prior=Prior(gain, KIND.prior.probability, KIND.prior.loss, KIND.prior.risk),
                evidence=f"{len(adds)} residual Adds read float beside Q/DQ for another layer",
            )


def _residuals(graph: Graph) -> tuple[str, ...]:
    """The Adds of two computed tensors one of which has a Q that another layer reads."""
    return tuple(
        node.name
        for node in graph.nodes
        if node.op == "Add"
        and not any(graph.is_constant(name) for name in node.inputs)
        and any(reader.op == QUANTISE for name in node.inputs for reader in graph.consumers[name])
    )


KIND = Kind("placement", Prior(0.047, 0.4, loss=0.05, risk=0.3), 5, _changes)
