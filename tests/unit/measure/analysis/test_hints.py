import pytest

from trtopt.measure.analysis.hints import Figures, Hint, HintCode, hints
from trtopt.records import Contract


def contract(graph: bool = False, transfers: bool = True, queue_ahead: int = 1, streams: int = 1) -> Contract:
    return Contract(
        name="test", graph=graph, transfers=transfers, queue_ahead=queue_ahead, sync="spin", streams=streams
    )


def codes(figures: Figures, terms: Contract) -> list[HintCode]:
    return [hint.code for hint in hints(figures, terms)]


def test_a_run_with_nothing_wrong_gets_no_hint() -> None:
    fine = Figures(0.1, 1.0, 0.2, 0.1, latency_cv=0.01, streams_gain=1.8, sm_mhz=1980, application_mhz=1980)
    assert hints(fine, contract(streams=2)) == ()


def test_a_run_of_which_little_was_measured_gets_no_hint() -> None:
    assert hints(Figures(0.1, 1.0), contract(streams=2)) == ()


def test_an_enqueue_bound_run_without_a_graph_is_told_of_graphs() -> None:
    assert hints(Figures(0.9, 1.0), contract()) == (
        Hint(
            HintCode.ENQUEUE_BOUND,
            "enqueue-bound: enqueueing takes 0.900 ms, computing 1.000 ms",
            "launch the engine as a CUDA graph with --graph",
        ),
    )


def test_an_enqueue_bound_run_with_a_graph_is_told_of_batches() -> None:
    (hint,) = hints(Figures(0.9, 1.0), contract(graph=True))
    assert hint.remedy == "a CUDA graph is in use already: try a larger --batch"


def test_a_copy_bound_run_names_both_copies() -> None:
    (hint,) = hints(Figures(0.1, 1.0, 0.8, 0.3), contract(queue_ahead=0))
    assert hint == Hint(
        HintCode.COPY_BOUND,
        "copy-bound: copies take 0.800 ms in and 0.300 ms out, computing 1.000 ms",
        "overlap copies with computing: --contract serving",
    )


def test_a_copy_bound_run_that_overlaps_already_is_told_to_move_less() -> None:
    (hint,) = hints(Figures(0.1, 1.0, 0.8, 0.3), contract(queue_ahead=1))
    assert hint.remedy.startswith("move less")
    assert "--contract trtexec-11" in hint.remedy


def test_an_unstable_run_is_told_its_variation() -> None:
    (hint,) = hints(Figures(0.1, 1.0, latency_cv=0.0412), contract())
    assert hint.text == "unstable: the coefficient of variation is 4.1%, over 2.5%"
    assert "--lock-clocks" in hint.remedy


def test_streams_that_gain_nothing_are_reported() -> None:
    (hint,) = hints(Figures(0.1, 1.0, streams_gain=1.021), contract(streams=4))
    assert hint == Hint(
        HintCode.STREAMS_GAIN_NOTHING,
        "streams gain nothing: 4 streams give 1.02 times one's throughput",
        "one stream fills the GPU: use --streams 1",
    )


def test_one_stream_cannot_gain_from_streams() -> None:
    assert hints(Figures(0.1, 1.0, streams_gain=1.0), contract(streams=1)) == ()


def test_clocks_below_application_level_are_reported_with_both_clocks() -> None:
    (hint,) = hints(Figures(0.1, 1.0, sm_mhz=1200, application_mhz=1980), contract())
    assert hint.text == "clocks not at application level: SM at 1200 MHz, application clock 1980 MHz"
    assert "--warmup" in hint.remedy


@pytest.mark.parametrize(
    ("at", "beyond", "code"),
    [
        (Figures(0.8, 1.0), Figures(0.801, 1.0), HintCode.ENQUEUE_BOUND),
        (Figures(0.1, 1.0, 0.75, 0.25), Figures(0.1, 1.0, 0.75, 0.26), HintCode.COPY_BOUND),
        (Figures(0.1, 1.0, latency_cv=0.025), Figures(0.1, 1.0, latency_cv=0.0251), HintCode.UNSTABLE),
        (
            Figures(0.1, 1.0, streams_gain=1.05),
            Figures(0.1, 1.0, streams_gain=1.049),
            HintCode.STREAMS_GAIN_NOTHING,
        ),
        (
            Figures(0.1, 1.0, sm_mhz=1881, application_mhz=1980),
            Figures(0.1, 1.0, sm_mhz=1880, application_mhz=1980),
            HintCode.CLOCKS_BELOW_APPLICATION,
        ),
    ],
)
def test_a_hint_is_given_only_beyond_its_limit(at: Figures, beyond: Figures, code: HintCode) -> None:
    assert codes(at, contract(streams=2)) == []
    assert codes(beyond, contract(streams=2)) == [code]


def test_hints_come_in_a_fixed_order() -> None:
    everything = Figures(
        2.0, 1.0, 1.0, 1.0, latency_cv=0.5, streams_gain=1.0, sm_mhz=500, application_mhz=1980
    )
    assert codes(everything, contract(streams=2)) == list(HintCode)
