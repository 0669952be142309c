"""Small graphs for each rewrite rule: where it fires, and where each of its guards declines.

They are written in ONNX's own text form. Weights named `w…`, `v…` are filled with seeded numbers. The
fusion audit builds `FIRES` before and after on a GPU; the tests run all of them on the CPU.
"""

from tests.rewrite_graphs.case import Case, model
from tests.rewrite_graphs.declines import CASES as DECLINES_FIRST
from tests.rewrite_graphs.fires_activations_and_merges import CASES as FIRES_ACTIVATIONS_AND_MERGES
from tests.rewrite_graphs.fires_folds_and_norms import CASES as FIRES_FOLDS_AND_NORMS
from tests.rewrite_graphs.fires_fp16_norms import CASES as FIRES_FP16_NORMS
from tests.rewrite_graphs.fires_in_fusions import CASES as FIRES_IN_FUSIONS
from tests.rewrite_graphs.fires_masks_ifs_padding import CASES as FIRES_MASKS_IFS_PADDING
from tests.rewrite_graphs.fires_on_exports import CASES as FIRES_ON_EXPORTS
from tests.rewrite_graphs.guards_fp16_norms import CASES as GUARDS_FP16_NORMS
from tests.rewrite_graphs.guards_on_norms import CASES as GUARDS_ON_NORMS
from tests.rewrite_graphs.guards_on_ranges import CASES as GUARDS_ON_RANGES
from tests.rewrite_graphs.guards_on_shapes import CASES as GUARDS_ON_SHAPES

FIRES = (
    *FIRES_FOLDS_AND_NORMS,
    *FIRES_ACTIVATIONS_AND_MERGES,
    *FIRES_IN_FUSIONS,
    *FIRES_MASKS_IFS_PADDING,
    *FIRES_ON_EXPORTS,
    *FIRES_FP16_NORMS,
)
DECLINES = (*DECLINES_FIRST, *GUARDS_ON_SHAPES, *GUARDS_FP16_NORMS, *GUARDS_ON_RANGES, *GUARDS_ON_NORMS)

__all__ = ["DECLINES", "FIRES", "Case", "model"]
