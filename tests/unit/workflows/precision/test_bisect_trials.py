"""What becomes of the sets that a bisection tries: figures, builds that fail, the model handed out."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from trtopt.errors import BuildError
from trtopt.onnxio.model_file import ModelFile
from trtopt.precision.bounds import HOPELESS, Bounds
from trtopt.precision.search import Names, search
from trtopt.records.precision import CheckedSubject, OutputDifference
from trtopt.workflows.precision.bisect import Trials, Variant

NODES = ("a", "b", "c", "d")


class Named:
    """Models that only say which nodes they keep; `+` is behind those that users get."""

    nodes = NODES
    notes: tuple[str, ...] = ()

    def __init__(self, *, islands: bool = False) -> None:
        self.islands = islands

    def variant(self, kept: Names, spool: Path) -> Variant:
        return Variant(ModelFile(onnx.ModelProto(doc_string="".join(sorted(kept))), spool, external=False))

    def tidied(self, kept: Names, spool: Path) -> Variant | None:
        text = "".join(sorted(kept)) + "+"
        return (
            Variant(ModelFile(onnx.ModelProto(doc_string=text), spool, external=False))
            if self.islands
            else None
        )


class Told:
    """Finds the errors that it was told, by what the model says, else 0.5; NaN is a build that fails."""

    def __init__(self, **errors: float) -> None:
        self.errors = errors

    def __call__(self, model: ModelFile, folder: Path) -> tuple[CheckedSubject, ...]:
        said = model.proto.doc_string.replace("+", "_more") or "none"
        error = self.errors.get(said, 0.5)
        if error != error:
            raise BuildError(f"no tactic for {said}")
        output = OutputDifference(output="y", values=1, cosine=1.0, sqnr_db=None, max_abs=error)
        return (CheckedSubject(name=said, backend="told", batch=8, samples=1, outputs=(output,)),)


def trials(folder: Path, *, islands: bool = False, **errors: float) -> Trials:
    return Trials(Named(islands=islands), Told(**errors), Bounds(max_error=1.0), folder, most=100)


def test_a_set_that_cannot_be_built_misses_the_bounds_and_is_reported(tmp_path: Path) -> None:
    nan = float("nan")
    tried = trials(tmp_path, none=3.0, abc=9.0, c=3.0, abd=nan)
    found = search(dict.fromkeys(NODES, 0.25), tried.error, 100)
    assert [trial.error for trial in found.trials if trial.kept == {"a", "b", "d"}] == [HOPELESS]
    assert found.best is not None
    assert found.best.kept == {"d"}
    (note,) = tried.notes
    assert note == "1 of the sets could not be built and count as missing the bounds: no tactic for abd"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", ["none", "abcd"])
def test_a_model_that_cannot_be_built_at_either_end_is_an_error(tmp_path: Path, failing: str) -> None:
    tried = trials(tmp_path, **{"none": 3.0, failing: float("nan")})
    with pytest.raises(BuildError, match=f"no tactic for {failing}"):
        search(dict.fromkeys(NODES, 0.25), tried.error, 100)


@pytest.mark.parametrize(("error", "said", "notes"), [(0.9, "d_more", 0), (1.1, "d", 1)])
def test_islands_stay_high_in_what_is_selected_only_if_the_bounds_are_met_so(
    tmp_path: Path, error: float, said: str, notes: int
) -> None:
    tried = trials(tmp_path, islands=True, d_more=error)
    assert tried.error(frozenset("d")) == 0.5
    made, subjects = tried.final(frozenset("d"), tmp_path)
    assert (made.model.proto.doc_string.replace("+", "_more"), subjects[0].name) == (said, said)
    assert len(tried.notes) == notes
    assert tried.used(subjects) == (error if error <= 1 else 0.5)
