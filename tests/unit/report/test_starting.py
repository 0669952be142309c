"""What a table of cold starts says besides its figures."""

import msgspec

from trtopt.records import ColdStart, ColdStarts
from trtopt.records.bench import START_PHASES
from trtopt.report.bench import cold_start_lines


def starts(first_ms: float, module_loading: str = "LAZY") -> ColdStarts:
    ms = dict.fromkeys(START_PHASES, 10.0) | {"first inference": first_ms}
    start = ColdStart(page_cache="warm", ms=ms)
    return ColdStarts(engine_bytes=1, starts=(start,) * 5, module_loading=module_loading)


def test_late_loading_of_kernels_is_named_only_where_it_costs_a_tenth_of_the_start() -> None:
    (line,) = cold_start_lines(8, starts(210.0))
    assert "200 ms more than the second" in line
    assert "CUDA_MODULE_LOADING=LAZY" in line
    assert cold_start_lines(8, starts(12.0)) == []
    assert cold_start_lines(8, starts(210.0, "EAGER")) == []


def test_a_refused_graph_is_named_once() -> None:
    cold = starts(10.0)
    refused = tuple(msgspec.structs.replace(one, graph_refused="no graphs here") for one in cold.starts)
    lines = cold_start_lines(1, msgspec.structs.replace(cold, starts=refused, notes=("a note",)))
    assert lines == ["batch 1: a note", "batch 1: no graph capture: no graphs here"]
