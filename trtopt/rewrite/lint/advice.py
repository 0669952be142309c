"""The record of a piece of advice, and of all advice on a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trtopt.records import Record
from trtopt.rewrite.scope import Scope

LINT_SCHEMA = "trtopt.lint/1"


class Advice(Record, frozen=True, kw_only=True):
    """One finding: at which node, why it matters, what it costs, what would help."""

    check: str
    node: str
    op: str
    reason: str
    effect: str
    remedy: str


class LintReport(Record, frozen=True, kw_only=True):
    """All findings for a model and a target."""

    schema: str = LINT_SCHEMA
    source: str
    target: str
    opset: int
    nodes: int
    advice: tuple[Advice, ...]


@dataclass(frozen=True)
class Finding:
    """Where a check found something (None: the model as a whole), and why it matters.

    `remedy` is this finding's own, where the check's is too general.
    """

    node: object | None
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """One question put to every graph of a model; its effect is the same for all findings."""

    name: str
    effect: str
    remedy: str
    find: Callable[[Scope], Iterator[Finding]]
