"""Which tactics layers get: recorded and held by IAlgorithmSelector, and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from trtopt.errors import BuildError
from trtopt.printable import some_of
from trtopt.records import LayerTactic


def select(trt: Any, config: Any, wanted: Collection[LayerTactic]) -> Any:
    """Have the builder ask which tactic each layer gets; returns the selector, which must outlive the build.

    Where no choice is among the `wanted` the layer has all. `made` is what layers got in the end.
    """
    held = frozenset(wanted)

    class Selector(trt.IAlgorithmSelector):  # type: ignore[misc]  # the base class is only known at run time
        def __init__(self) -> None:
            trt.IAlgorithmSelector.__init__(self)
            self.made: list[LayerTactic] = []

        def select_algorithms(self, context: Any, choices: Any) -> list[int]:
            every = list(range(len(choices)))
            return [at for at in every if held and _described(context, choices[at]) in held] or every

        def report_algorithms(self, contexts: Any, choices: Any) -> None:
            self.made += list(map(_described, contexts, choices))

    config.algorithm_selector = selector = Selector()
    config.set_flag(trt.BuilderFlag.DISABLE_TIMING_CACHE)  # a cached timing leaves no choice
    return selector


def _described(context: Any, algorithm: Any) -> LayerTactic:
    """Numbers are as the inspector writes them: 64 bits without a sign."""
    variant = algorithm.algorithm_variant
    ports = map(algorithm.get_algorithm_io_info, range(context.num_inputs + context.num_outputs))
    return LayerTactic(
        layer=context.name,
        implementation=f"{variant.implementation & 0xFFFFFFFFFFFFFFFF:#018x}",
        tactic=f"{variant.tactic & 0xFFFFFFFFFFFFFFFF:#018x}",
        formats=tuple(
            f"{io.dtype.name} {tuple(io.strides)} {io.vectorized_dim}:{io.components_per_element}"
            for io in ports
        ),
    )


def require_held(wanted: Sequence[LayerTactic], made: Sequence[LayerTactic]) -> None:
    """Check that layers got what a lock has, each as often; a layer that it does not have is not held.

    Without a lock any layer will do. TensorRT only prints what the selector raises, and then reports none.
    """
    if not made:
        raise BuildError(
            "TensorRT reported no layer's tactic; its log may say why", "omit --lock or --locked"
        )
    locked, got = Counter(wanted), Counter(made)
    loose = list(dict.fromkeys(one.layer for one in (locked - got) + (got - locked)))
    if wanted and loose:
        layers = len({one.layer for one in (*wanted, *made)})
        raise BuildError(
            f"--locked: held {layers - len(loose)} of {layers} layers; not held: {some_of(loose, 12)}",
            "write a new lock with --lock, as TensorRT has other choices here; or omit --locked",
        )
