"""What is known of a rule's worth on a target, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trtopt.targets import target_names

Kind = Literal["builds", "faster", "slower", "stage", "layers"]
"""`builds`: models import, build, or have the right sizes only with the rule; `faster`, `slower`: engines
measured in turns; `stage`: a later stage does more with it; `layers`: what the engine inspector lists."""

AUDIT = "benchmarks/fusion-audit/layers.json"
AUDIT_RTX = "benchmarks/fusion-audit/layers-rtx.json"
MEASURED = "benchmarks/collection/results.json"
ALONE = "benchmarks/plain/results/rnnt-prediction-1.json"
RULES_ALONE = "benchmarks/plain/results-rules/rules.json"
MERGED = "benchmarks/kernels/results-forms/merged-8.turns.json"
STAGES = "tests/unit/rewrite/test_evidence.py"
PARSER_8_6 = "https://github.com/onnx/onnx-tensorrt/blob/release/8.6-GA/builtin_op_importers.cpp"
MAXPOOL = "https://github.com/onnx/onnx-tensorrt/blob/release/10.1-GA/docs/operators.md"

AUDITED = ("8.6",)
"""The target of the audit and of all pairs that were measured."""
BUILT_HERE, DOCUMENTED = ("rtx",), ("10", "11")
"""Targets that were audited without a GPU, and those of which documents alone are known."""
BUILD_SPREAD = 0.025
"""How far four builds of one model lay apart (ResNet-50, TensorRT 8.6, H200; benchmarks/trust)."""


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


@dataclass(frozen=True)
class Measured:
    """A model's engines before and after some rules, in turns in one process, one build each, FP16.

    `ratios` are latency after over before, by batch size, where the verdict was FASTER or SLOWER; `run` and
    `label` find them in `MEASURED`. An NVIDIA H200, TensorRT 8.6.0.
    """

    run: str
    label: str
    rules: tuple[str, ...]
    ratios: Mapping[int, float]

    @property
    def is_slower(self) -> bool:
        """Whether any batch size took longer."""
        return max(self.ratios.values()) > 1

    @property
    def shows(self) -> str:
        """In words: the change of latency by batch size, and what else was applied."""
        name = self.label.partition("-rewritten")[0]
        changes = ", ".join(f"{ratio - 1:+.1%} at {batch}" for batch, ratio in self.ratios.items())
        return f"{name} {changes} with {len(self.rules)} rules"


PAIRS = (
    Measured(
        "2026-11-21 376ebbf",
        "minilm-s128-rewritten-any",
        ("share-equal", "plain-reshape"),
        {1: 0.9855, 32: 0.9882, 128: 0.9655},
    ),
    Measured(
        "2026-11-21 376ebbf",
        "vit-b16-rewritten-any",
        ("fold-shapes", "share-equal", "plain-reshape", "fold-constants", "narrow-indices"),
        {8: 0.9881, 32: 1.0678, 128: 1.0589},
    ),
    Measured(
        "2026-11-21 04b57d7",
        "vit-b16-rewritten-any",
        (
            *("fold-shapes", "share-equal", "plain-reshape", "fold-constants", "narrow-indices"),
            *("transpose-merged", "transpose-chain"),
        ),
        {8: 0.9874},
    ),
    Measured("2026-11-22 e9e4ecb", "bert-base-merged-32", ("merge-matmuls",), {32: 1.1184}),
    Measured(
        "2026-11-22 c9198e6",
        "gpt-decode-p512-rewritten-any",
        ("share-equal", "reshape-chain", "narrow-indices"),
        {1: 1.0188, 8: 1.0112},
    ),
    Measured(
        "2026-11-22 7029abb",
        "gpt-prefill-s128-rewritten-any",
        ("plain-reshape", "share-equal", "transpose-chain", "narrow-indices"),
        {8: 0.9834},
    ),
    Measured(
        "2026-11-22 7029abb",
        "rnnt-prediction-rewritten-any",
        ("move-constant", "fold-shapes", "reshape-chain", "plain-reshape", "fold-constants"),
        {1: 0.7106, 8: 0.7048, 32: 0.7196, 128: 0.7525},
    ),
    Measured(
        "2026-11-23 16d2f55",
        "retinanet-rewritten-1",
        ("narrow-indices", "share-equal", "fold-weights", "mask-and"),
        {1: 0.9898},
    ),
    Measured(
        "2026-11-23 16d2f55",
        "unet3d-rewritten-1",
        ("erase-arithmetic", "share-equal", "layer-norm", "norm-casts"),
        {1: 1.2285},
    ),
)
"""Every pair with a verdict but SAME and UNDECIDED. `layer-norm` has become narrower since unet3d's."""
