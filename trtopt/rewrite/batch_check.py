"""Whether a batch axis that was made dynamic works: two inputs at once give what each gives alone."""

from __future__ import annotations

import numpy as np

from trtopt.errors import FixedBatchError
from trtopt.onnxmodel import feeds
from trtopt.onnxmodel.model_file import ModelFile
from trtopt.rewrite import equivalence


def prove(fixed: ModelFile, dynamic: ModelFile) -> str:
    """Run the fixed model on two inputs and the dynamic one on both at once; what was found, in words.

    Raises:
        FixedBatchError: the dynamic model cannot run at twice the batch, or its outputs differ.
    """
    alone = [feeds.seeded(fixed.proto, seed)[0] for seed in (0, 1)]
    wanted = equivalence.run(fixed, alone)
    joined = {name: np.concatenate([feed.values[name] for feed in alone]) for name in alone[0].values}
    remedy = "export the model with a dynamic batch axis; its batch is baked in where it cannot be patched"
    try:
        got = equivalence.run(dynamic, [feeds.Feed("both", joined)])[0]
    except equivalence.Unrunnable as error:
        raise FixedBatchError(f"twice the batch does not run: {error.problem}", remedy) from None
    for name, value in got.items():
        parts = [output[name] for output in wanted]
        reference = np.concatenate(parts) if parts[0].ndim else parts[0]
        gap = equivalence.error_between(reference, value)
        if gap > equivalence.bound("N", reference.dtype):
            raise FixedBatchError(f"at twice the batch, output {name!r} differs by {gap:.3g}", remedy)
    return "checked at the old batch and at twice that"
