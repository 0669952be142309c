"""What a bisection tries: models with some nodes kept, made, judged, and remembered as figures."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from trtopt.errors import BuildError
from trtopt.precision.bisect.search import ALLOWED, FEWEST, Names
from trtopt.precision.bisect.variants import Variant, Variants
from trtopt.precision.bounds import HOPELESS, Bounds, allowance_used
from trtopt.records.checking import CheckedSubject
from trtopt.workflows.precision.evaluators import Evaluator


class Trials:
    """Evaluates sets of kept nodes. `subjects` is what was measured of each, `notes` what is to be said."""

    def __init__(self, variants: Variants, evaluator: Evaluator, bounds: Bounds, scratch: Path) -> None:
        self.subjects: dict[Names, tuple[CheckedSubject, ...]] = {}
        self._variants, self._evaluate, self._bounds, self._scratch = variants, evaluator, bounds, scratch
        self._unbuilt: list[str] = []
        self._notes: list[str] = []

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of how it went."""
        if not self._unbuilt:
            return tuple(self._notes)
        count = f"{len(self._unbuilt)} of the sets could not be built and count as missing the bounds"
        return (*self._notes, f"{count}: {self._unbuilt[0]}")

    def error(self, kept: Names) -> float:
        """What the model with these nodes kept uses of the bounds; all, where no engine can be built of it.

        Raises:
            BuildError: the model with nothing kept, or with everything, cannot be built.
            TrtoptError: it cannot be made or run.
        """
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:  # its weights live as long as it does
            made = self._variants.variant(kept, Path(folder))
            try:
                self.subjects[kept] = self._evaluate.evaluated(made.model, Path(folder))
            except BuildError as error:
                if len(self.subjects) < FEWEST:
                    raise
                self._unbuilt.append(error.problem)
                return HOPELESS
        return self.used(self.subjects[kept])

    def used(self, subjects: Sequence[CheckedSubject]) -> float:
        """How much of what the bounds allow the worst of them uses."""
        return max(allowance_used(item.outputs, self._bounds) for item in subjects)

    def final(self, kept: Names, spool: Path) -> tuple[Variant, tuple[CheckedSubject, ...]]:
        """The resulting model with these nodes kept, and its measurements."""
        made = self._variants.tidied(kept, spool)
        if made is not None:
            with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
                subjects = self._evaluate.evaluated(made.model, Path(folder))
            if self.used(subjects) <= ALLOWED:
                return made, subjects
            self._notes.append(
                "nodes alone between kept ones are cast, unlike trtopt cast: in FP32 the bounds are missed"
            )
        return self._variants.variant(kept, spool), self.subjects[kept]
