"""Squeeze-and-excitation gates: pool → layers → sigmoid → multiplied with what was pooled."""

from __future__ import annotations

from trtopt.precision.placement.view import ACTIVATIONS, RESHAPES, Node, View, is_op

_LAYERS = ("Conv", "Gemm", "MatMul", "BatchNormalization")
_BETWEEN = {*_LAYERS, *ACTIVATIONS, *RESHAPES, "Add", "Transpose", "Cast", "Div", "Expand"}
_POOLS = ("GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax", "ReduceSum")
_SIGMOIDS = ("Sigmoid", "HardSigmoid", "Clip", "Softmax", "Tanh")


def is_gate(view: View, node: Node) -> bool:
    """Whether the layer lies between a pool over whole maps and the product that it gates."""
    return _is_fed_by_pool(view, node) and _leads_to_product(view, node)


def _is_fed_by_pool(view: View, node: Node) -> bool:
    seen: set[str] = set()
    waiting = [name for name in node.input if name]
    while waiting:
        maker = view.maker.get(waiting.pop())
        if maker is None or maker.name in seen:
            continue
        if is_op(maker, *_POOLS):
            return True
        seen.add(maker.name)
        if is_op(maker, *_BETWEEN) or (is_op(maker, "Mul") and _is_by_own_branch(view, maker)):
            waiting += [name for name in maker.input if name]
    return False


def _is_by_own_branch(view: View, product: Node) -> bool:
    """x·Sigmoid(x), which is an activation and not a gate, or a product with a constant."""
    return len(view.computed_inputs(product)) < 2 or is_own_gate(view, product)


def is_own_gate(view: View, product: Node) -> bool:
    """Whether the node is the Mul of x·Sigmoid(x) or x·HardSigmoid(x)."""
    computed = [product.input[index] for index in view.computed_inputs(product)]
    if not is_op(product, "Mul") or len(computed) < 2:
        return False
    for inner, outer in (computed, computed[::-1]):
        maker = view.maker.get(outer)
        if maker is not None and is_op(maker, "Sigmoid", "HardSigmoid") and maker.input[0] == inner:
            return True
    return False


def _leads_to_product(view: View, node: Node) -> bool:
    waiting = [(name, False) for name in node.output]
    seen: set[tuple[str, bool]] = set()
    while waiting:
        tensor, is_bounded = waiting.pop()
        if (tensor, is_bounded) in seen:
            continue
        seen.add((tensor, is_bounded))
        for use in view.uses(tensor):
            if is_op(use.node, "Mul") and not _is_by_own_branch(view, use.node):
                if is_bounded:
                    return True
            elif is_op(use.node, *_BETWEEN, "Mul"):
                bounded = is_bounded or is_op(use.node, *_SIGMOIDS)
                waiting += [(name, bounded) for name in use.node.output]
    return False
