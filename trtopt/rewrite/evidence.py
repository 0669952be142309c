"""What is known of a rule's worth on a target, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtopt.targets import target_names

Kind = Literal["builds", "faster", "stage", "layers"]
"""`builds`: models import, build, or have the right sizes only with the rule; `faster`: engines measured
with it and without; `stage`: a later stage does more with it; `layers`: what the engine inspector lists."""

AUDIT = "benchmarks/fusion-audit/layers.json"
AUDIT_RTX = "benchmarks/fusion-audit/layers-rtx.json"
ALONE = "benchmarks/plain/results/rnnt-prediction-1.json"
RULES_ALONE = "benchmarks/plain/results-rules/rules.json"
MERGED = "benchmarks/kernels/results-forms/merged-8.turns.json"
STAGES = "tests/unit/rewrite/test_evidence.py"
PARSER_8_6 = "https://github.com/onnx/onnx-tensorrt/blob/release/8.6-GA/builtin_op_importers.cpp"
MAXPOOL = "https://github.com/onnx/onnx-tensorrt/blob/release/10.1-GA/docs/operators.md"

AUDITED = ("8.6",)
"""The target of the audit and of all that was measured."""
BUILT_HERE, DOCUMENTED = ("rtx",), ("10", "11")
"""Targets that were audited without a GPU, and those of which documents alone are known."""


@dataclass(frozen=True)
class Evidence:
    """One finding for the targets named; `source` is a file of the repository or an address."""

    kind: Kind
    targets: tuple[str, ...]
    shows: str
    source: str


def builds(shows: str, targets: tuple[str, ...] = AUDITED, source: str = AUDIT) -> Evidence:
    """What TensorRT refuses, or gets wrong, without the rule."""
    return Evidence("builds", targets, shows, source)


def layers(shows: str) -> Evidence:
    """What the fusion audit found in engines of TensorRT 8.6 on an H200."""
    return Evidence("layers", AUDITED, shows, AUDIT)


def faster(shows: str, source: str = ALONE) -> Evidence:
    """What an engine of TensorRT 8.6 gained by the rule alone."""
    return Evidence("faster", AUDITED, shows, source)


def quantizes(shows: str) -> Evidence:
    """What Q/DQ placement does only with the rule, by itself or by what it enables, whatever the target."""
    return Evidence("stage", target_names(), shows, STAGES)
