import math

from hypothesis import given, strategies as st

from trtopt.records import BatchPolicy
from trtopt.serving.batching_policy import Run, Wait, Waiting, decide

POLICY = BatchPolicy(max_batch=8, max_delay_ms=250.0, max_waiting=100)


def test_nothing_waiting_is_waited_for() -> None:
    assert decide(1.0, [], POLICY) == Wait(math.inf)


def test_a_request_waits_for_company_until_the_delay_is_over() -> None:
    assert decide(1.0, [Waiting(1, 1.0)], POLICY) == Wait(1.25)
    assert decide(1.125, [Waiting(7, 1.0)], POLICY) == Wait(1.25)
    assert decide(1.25, [Waiting(7, 1.0)], POLICY) == Run(0, 7)


def test_a_full_batch_runs_at_once_and_leaves_the_rest() -> None:
    assert decide(1.0, [Waiting(8, 1.0)], POLICY) == Run(0, 8)
    assert decide(1.0, [Waiting(20, 1.0)], POLICY) == Run(0, 8)


def test_of_several_queues_the_one_that_has_waited_longest_runs_among_those_that_are_due() -> None:
    patient, due, older = Waiting(1, 0.9), Waiting(8, 1.0), Waiting(8, 0.95)
    assert decide(1.0, [patient, due, older], POLICY) == Run(2, 8)
    assert decide(1.0, [patient, due], POLICY) == Run(1, 8)
    assert decide(1.0, [patient, Waiting(2, 0.95)], POLICY) == Wait(1.15)


QUEUES = st.lists(
    st.builds(Waiting, st.integers(1, 20), st.floats(0, 1)),
    max_size=4,
)


@given(QUEUES, st.floats(1, 2), st.integers(1, 10), st.floats(0, 500))
def test_whatever_waits_runs_when_it_was_said_to_at_the_latest(
    queues: list[Waiting], now_s: float, max_batch: int, max_delay_ms: float
) -> None:
    policy = BatchPolicy(max_batch=max_batch, max_delay_ms=max_delay_ms)
    step = decide(now_s, queues, policy)
    if isinstance(step, Run):
        assert step.count == min(queues[step.queue].count, max_batch)
        return
    assert step.until_s > now_s
    assert all(queue.count < max_batch for queue in queues)
    if queues:
        assert step.until_s <= min(queue.oldest_s for queue in queues) + max_delay_ms / 1e3
        assert isinstance(decide(step.until_s, queues, policy), Run)
