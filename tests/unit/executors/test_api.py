"""The executor of this host."""

from trtopt.executors.api import LocalExecutor, shares_a_host
from trtopt.records import Identity
from trtopt.workers.jobs import CopyJob, IdentifyJob

IDENTIFY = IdentifyJob(backend="onnxruntime")


def test_jobs_that_share_a_host_run_in_every_place_at_a_time() -> None:
    began: list[int] = []

    def progress(index: int, phase: str, fraction: float | None) -> None:
        if phase == "starting":
            began.append(index)

    outcomes = LocalExecutor(places=(None, None)).run_all_jobs([IDENTIFY, IDENTIFY], on_progress=progress)
    for _, outcome in outcomes:
        assert isinstance(outcome, Identity)
        assert sorted(began) == [0, 1]


def test_a_measurement_shares_its_host_with_nothing() -> None:
    assert not shares_a_host(CopyJob(backend="onnxruntime", nbytes=1))
    running: set[int] = set()

    def progress(index: int, phase: str, fraction: float | None) -> None:
        if phase == "starting":
            assert not running
            running.add(index)

    jobs = [CopyJob(backend="onnxruntime", nbytes=1 << 20)] * 2
    for index, _ in LocalExecutor(places=(None, None)).run_all_jobs(jobs, on_progress=progress):
        running.remove(index)
