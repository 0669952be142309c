"""The request of `rewrite`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from trtopt.options import Option, Output
from trtopt.requests.parsing import parse_rules
from trtopt.requests.shared import (
    Data,
    GraphIo,
    Normalize,
    OnnxFile,
    Preprocess,
    Request,
    Target,
    rule_names,
    samples,
)
from trtopt.targets import DEFAULT


@dataclass(frozen=True)
class RewriteRequest(Request):
    """What to rewrite by which rules."""

    model: OnnxFile
    output: Annotated[str | Path, Output("File to write the rewritten model to.", "model")]
    _: KW_ONLY
    target: Annotated[Target, "TensorRT to rewrite for."] = DEFAULT
    rules: Annotated[
        Sequence[str] | None,
        Option(
            "Only these rules (also ones that are off).",
            metavar="NAME,…",
            parse=parse_rules,
            names=rule_names,
        ),
    ] = None
    skip: Annotated[
        Sequence[str], Option("Skip these rules.", metavar="NAME,…", parse=parse_rules, names=rule_names)
    ] = ()
    clean: Annotated[bool, Option("Also apply rules that tidy the graph and that no build needs.")] = False
    check: Annotated[
        bool,
        Option(
            "Do not run both models to compare them.",
            python="run both models on seeded inputs, every dynamic axis at two sizes; a rule that breaks "
            "its "
            "bound is undone and named in the trace.",
            flag="--no-check",
        ),
    ] = True
    data: Annotated[Data, samples("Real inputs for the check")] = None
    io: GraphIo = None
    normalize: Normalize = None
    preprocess: Preprocess = None
    dynamic_batch: Annotated[bool, Option("Give a fixed batch axis the name `batch`.")] = False
    keep_going: Annotated[bool, Option("Skip a rule that fails instead of stopping.")] = False
