"""The forms of an INT8 graph: what stays float, what becomes INT8, and how they are written."""

from __future__ import annotations

from typing import Literal, get_args, get_type_hints

import msgspec

from trtopt.errors import UsageError
from trtopt.records import Record


class Forms(Record, frozen=True, kw_only=True):
    """One choice of each; written as `residual=both,attention=on`, those that are not the default."""

    gates: Literal["float", "int8"] = "float"
    """Squeeze-and-excitation: convolutions, pool and product in float, or all in INT8."""
    activation: Literal["float", "int8"] = "float"
    """HardSwish behind a quantised layer, which TensorRT does not fuse with it, in float or between Q/DQ."""
    residual: Literal["none", "skip", "both"] = "none"
    """What residual Adds behind matrix products read in INT8; behind convolutions it is always the skip."""
    attention: Literal["off", "on"] = "off"
    """Whether Q, K, V and the probabilities are quantised in front of attention's products."""
    qkv: Literal["apart", "merged"] = "apart"
    """Products of one input, such as those of Q, K and V, as they are or as one and a Split."""
    gelu: Literal["product", "half"] = "product"
    """GELU between its product and the next Q unchanged, or in FP16 between casts."""
    rest: Literal["float", "half"] = "float"
    """Normalisations and sums between Q/DQ in FP32, or in FP16 between casts."""
    smoothing: Literal["everywhere", "folded", "off"] = "everywhere"
    """Outlying channels divided where other weights take it all (`folded`), or at the price of a Mul, too."""

    def __str__(self) -> str:
        return ",".join(f"{name}={choice}" for name, choice in self.chosen.items())

    @property
    def chosen(self) -> dict[str, str]:
        """The choices that are not the default, by field."""
        every = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: choice for name, choice in every.items() if choice != getattr(PLAIN, name)}


PLAIN = Forms()

CHOICES: dict[str, tuple[str, ...]] = {name: get_args(kind) for name, kind in get_type_hints(Forms).items()}
"""The choices of each field, its default first."""


def forms_in(candidate: str) -> str:
    """The forms in the name of a candidate such as `int8.attention=on.part1`, as text."""
    return next((part for part in candidate.split(".")[1:] if "=" in part), "")


def parse_forms(text: str) -> Forms:
    """The forms that are written like `residual=both,attention=on`."""
    chosen: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, _, choice = part.strip().partition("=")
        if choice not in CHOICES.get(name, ()):
            known = "; ".join(f"{form}={' or '.join(choices)}" for form, choices in CHOICES.items())
            raise UsageError(f"--forms {text}: no form {part.strip()!r}", f"combine with commas: {known}")
        chosen[name] = choice
    return msgspec.convert(chosen, Forms)
