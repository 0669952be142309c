"""Linting a model file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trtopt.onnxio import model_file, prepare
from trtopt.rewrite import driver
from trtopt.rewrite.lint.advice import Advice, LintReport
from trtopt.rewrite.lint.shapes import SHAPE_CHECKS
from trtopt.rewrite.lint.structure import STRUCTURE_CHECKS
from trtopt.targets import target_named

CHECKS = (*SHAPE_CHECKS, *STRUCTURE_CHECKS)


def lint_model(source: Path, *, target: str) -> LintReport:
    """Look for what will be slow or odd on the TensorRT `target`; nothing is run or written.

    Raises:
        UsageError: an unknown target.
        ModelError: the file is unsound.
    """
    aim = target_named(target)
    original = model_file.load(source)
    proto, _ = prepare.prepare(original.proto)
    advice = []
    for scope in driver.scopes_of(replace(original, proto=proto), aim):
        for check in CHECKS:
            for finding in check.find(scope):
                node = finding.node
                advice.append(
                    Advice(
                        check=check.name,
                        node=getattr(node, "name", ""),
                        op=getattr(node, "op", ""),
                        reason=finding.reason,
                        effect=check.effect,
                        remedy=finding.remedy or check.remedy,
                    )
                )
    return LintReport(
        source=str(source),
        target=aim.name,
        opset=prepare.opset_of(proto),
        nodes=prepare.count_nodes(proto),
        advice=tuple(advice),
    )
