"""Small graphs for each rewrite rule: where it fires, and where each of its guards declines.

They are written in ONNX's own text form. Weights named `w…`, `v…` are filled with seeded numbers. The
fusion audit builds `FIRES` before and after on a GPU; the tests run all of them on the CPU.
"""

from tests.rewrite_graphs.case import Case, model
from tests.rewrite_graphs.declines import CASES as DECLINES_FIRST
from tests.rewrite_graphs.fires_first import CASES as FIRES_FIRST
from tests.rewrite_graphs.fires_in_company import CASES as FIRES_IN_COMPANY
from tests.rewrite_graphs.fires_in_half import CASES as FIRES_IN_HALF
from tests.rewrite_graphs.fires_late import CASES as FIRES_LATE
from tests.rewrite_graphs.fires_on_exports import CASES as FIRES_ON_EXPORTS
from tests.rewrite_graphs.fires_second import CASES as FIRES_SECOND
from tests.rewrite_graphs.guards_in_half import CASES as GUARDS_IN_HALF
from tests.rewrite_graphs.guards_on_norms import CASES as GUARDS_ON_NORMS
from tests.rewrite_graphs.guards_on_ranges import CASES as GUARDS_ON_RANGES
from tests.rewrite_graphs.guards_on_shapes import CASES as GUARDS_ON_SHAPES

FIRES = (*FIRES_FIRST, *FIRES_SECOND, *FIRES_IN_COMPANY, *FIRES_LATE, *FIRES_ON_EXPORTS, *FIRES_IN_HALF)
DECLINES = (*DECLINES_FIRST, *GUARDS_ON_SHAPES, *GUARDS_IN_HALF, *GUARDS_ON_RANGES, *GUARDS_ON_NORMS)

__all__ = ["DECLINES", "FIRES", "Case", "model"]
