"""What judges the models of a bisection: ONNX Runtime as they are, or TensorRT by engines built of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trtopt.data import open_data
from trtopt.device.backends import BackendChoice, choose_for_running, open_builder
from trtopt.device.building import EngineBuilder
from trtopt.errors import BackendMissingError, UsageError
from trtopt.onnxio import model_file
from trtopt.onnxio.model_file import ModelFile
from trtopt.recipe import make_recipe
from trtopt.records.precision import CheckedSubject
from trtopt.targets import DEFAULT, ONNXRUNTIME, target_of
from trtopt.workflows.bench.resolve_engines import engines_of_build, points
from trtopt.workflows.build.build import build
from trtopt.workflows.listener import SILENT
from trtopt.workflows.precision.check import Checker


class Evaluator(Protocol):
    """Compares models with the reference. `target` is what they have to be written for."""

    backend: str
    reason: str
    target: str

    def evaluated(self, model: ModelFile, folder: Path) -> tuple[CheckedSubject, ...]:
        """How far the model lies from the reference; `folder` is empty and for this one model."""


@dataclass(frozen=True)
class EngineTerms:
    """How engines are built, `batch` None by the recipe's sizes; running one may take `timeout` seconds."""

    batch: Sequence[int] | None = None
    profile: str | None = None
    timeout: float | None = None


def evaluator_for(
    checker: Checker, data: str, backend: str, target: str | None, terms: EngineTerms
) -> Evaluator:
    """Engines where a GPU and TensorRT are here, or where `backend` asks for them; else ONNX Runtime."""
    choice = choose_for_running(backend)
    if choice.name != ONNXRUNTIME:
        try:
            builder = open_builder(choice.name)
        except BackendMissingError as error:
            if backend != "auto":
                raise
            choice = BackendChoice(ONNXRUNTIME, error.problem)
        else:
            _check_terms(builder, target, terms)
            return EngineEvaluator(checker, data, builder, choice.reason, terms)
    if terms != EngineTerms():
        raise UsageError(
            f"--batch, --recipe and --timeout are for engines, and none are built: {choice.reason}",
            "omit them",
        )
    return RuntimeEvaluator(checker, data, choice.reason, target or DEFAULT)


def _check_terms(builder: EngineBuilder, target: str | None, terms: EngineTerms) -> None:
    own = target_of(builder.backend).name
    if target not in (None, own):
        raise UsageError(
            f"--target {target}: the engines are built by {builder.backend}, whose target is {own}",
            "omit --target, or evaluate without engines: --backend onnxruntime",
        )
    if make_recipe(terms.profile, {}).precision is not None:
        raise UsageError(f"--recipe {terms.profile} names a precision", "take it out: --precision says which")


class RuntimeEvaluator:
    """ONNX Runtime runs the models, their 16-bit arithmetic emulated."""

    backend = ONNXRUNTIME

    def __init__(self, checker: Checker, data: str, reason: str, target: str) -> None:
        self.reason, self.target = reason, target
        self._checker, self._data = checker, data

    def evaluated(self, model: ModelFile, folder: Path) -> tuple[CheckedSubject, ...]:
        """See `Judge`."""
        return (self._checker.model_file("emulated", model, open_data(self._data)),)


class EngineEvaluator:
    """Engines are built of the models as they are and run; all builds share one timing cache."""

    def __init__(
        self, checker: Checker, data: str, builder: EngineBuilder, reason: str, terms: EngineTerms
    ) -> None:
        self.backend, self.target, self.reason = str(builder.backend), target_of(builder.backend).name, reason
        self._name, self._uses_cache = builder.backend.name, builder.uses_timing_cache
        self._checker, self._data, self._terms = checker, data, terms

    def evaluated(self, model: ModelFile, folder: Path) -> tuple[CheckedSubject, ...]:
        """See `Judge`."""
        source, built = folder / "variant.onnx", folder / "engines"
        model_file.save(model, source)
        recipe = make_recipe(
            self._terms.profile,
            {
                "batch": self._terms.batch or None,
                "backend": self._name,
                "rewrite": "none",
                "timing_cache": str(folder.parent / "timing.cache") if self._uses_cache else None,
            },
        )
        manifest = build(source, built, recipe)
        there = engines_of_build(built, manifest, manifest.engines)
        return tuple(
            self._checker.engine(there, engine, size, self._data, SILENT, self._terms.timeout)
            for engine, size in points(manifest.engines, None)
        )
