"""Work that submits jobs, in as many threads as an executor takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from trtopt.executors.api import Executor


def run_in_threads(executor: Executor, works: Sequence[Callable[[], None]]) -> None:
    """Do all works, as many at a time as the executor takes; an error of one ends the others."""
    if executor.at_once == 1 or len(works) == 1:
        for work in works:
            work()
        return
    with ThreadPoolExecutor(min(len(works), executor.at_once), thread_name_prefix="jobs") as threads:
        running = [threads.submit(work) for work in works]
        try:
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            for one in done:
                one.result()
        except BaseException:  # Ctrl-C too: the block's end waits for all threads
            executor.cancel()
            threads.shutdown(wait=False, cancel_futures=True)
            raise
