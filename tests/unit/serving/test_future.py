"""Answers do as futures do, and have a condition only where somebody waits."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait

import pytest
from hypothesis import given, strategies as st

from trtopt.serving import request_queue as module
from trtopt.serving.request_queue import InferenceFuture

Steps = dict[str, Callable[[Future[int], list[str]], object]]

STEPS: Steps = {
    "done": lambda future, _: future.done(),
    "running": lambda future, _: future.running(),
    "cancelled": lambda future, _: future.cancelled(),
    "begin": lambda future, _: future.set_running_or_notify_cancel(),
    "cancel": lambda future, _: future.cancel(),
    "answer": lambda future, _: future.set_result(7),
    "fail": lambda future, _: future.set_exception(ValueError("no")),
    "result": lambda future, _: future.result(timeout=0),
    "exception": lambda future, _: repr(future.exception(timeout=0)),
    "call back": lambda future, told: future.add_done_callback(lambda one: told.append(str(one.done()))),
    "wait": lambda future, _: len(wait([future], timeout=0).done),
}


def outcome(step: str, future: Future[int], told: list[str]) -> object:
    try:
        return STEPS[step](future, told), list(told)
    except BaseException as error:  # noqa: BLE001  (CancelledError is none of Exception)
        return type(error), list(told)


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=12))
def test_whatever_is_done_comes_out_as_of_a_plain_future(steps: list[str]) -> None:
    plain, ours = Future[int](), InferenceFuture[int]()
    told_plain: list[str] = []
    told_ours: list[str] = []
    for step in steps:
        assert outcome(step, ours, told_ours) == outcome(step, plain, told_plain)


def test_it_sets_what_a_future_of_this_python_sets() -> None:
    own = {"_has_condition"}
    assert vars(InferenceFuture()).keys() - own == vars(Future()).keys() - {"_condition"}
    assert {name: vars(InferenceFuture())[name] for name in vars(InferenceFuture()).keys() - own} == {
        name: value for name, value in vars(Future()).items() if name != "_condition"
    }


def test_one_that_is_answered_before_anybody_waits_has_no_condition() -> None:
    answer = InferenceFuture[int]()
    assert answer.set_running_or_notify_cancel()
    answer.set_result(7)
    assert answer.result() == 7
    assert "_condition" not in vars(answer)


def test_waiting_threads_are_notified() -> None:
    answers = [InferenceFuture[int]() for _ in range(3)]
    got: list[int] = []
    threads = [threading.Thread(target=lambda one=one: got.append(one.result(timeout=60))) for one in answers]
    for thread in threads:
        thread.start()
    for number, answer in enumerate(answers):
        answer.set_running_or_notify_cancel()
        answer.set_result(number)
    for thread in threads:
        thread.join()
    assert sorted(got) == [0, 1, 2]


def test_the_standard_librarys_ways_to_wait_hear_of_it() -> None:
    answers = [InferenceFuture[int]() for _ in range(3)]
    for answer in answers[1:]:
        answer.set_running_or_notify_cancel()

    def in_time() -> None:
        for number, answer in enumerate(answers[1:]):
            answer.set_result(number)

    timer = threading.Timer(0.05, in_time)
    timer.start()
    assert wait(answers, timeout=60, return_when=FIRST_COMPLETED).done <= set(answers[1:])
    assert {one.result() for one in as_completed(answers[1:], timeout=60)} == {0, 1}
    timer.join()


def test_it_is_awaited() -> None:
    async def awaited() -> int:
        answer = InferenceFuture[int]()
        answer.set_running_or_notify_cancel()
        threading.Timer(0.05, answer.set_result, [7]).start()
        return await asyncio.wait_for(asyncio.wrap_future(answer), 60)

    assert asyncio.run(awaited()) == 7


def test_answered_and_waited_for_at_the_same_time_no_one_is_forgotten() -> None:
    """The one who waits makes the condition while the other one answers without it."""
    for _ in range(2000):
        answer = InferenceFuture[int]()
        answer.set_running_or_notify_cancel()
        both = threading.Barrier(2)

        def settle(answer: InferenceFuture[int] = answer, both: threading.Barrier = both) -> None:
            both.wait()
            answer.set_result(7)

        thread = threading.Thread(target=settle)
        thread.start()
        both.wait()
        assert wait([answer], timeout=60).done == {answer}
        thread.join()


def test_a_signals_handler_may_ask_where_another_one_is_being_asked() -> None:
    """It runs in the same thread, which may have the guard just then."""

    def ask_while_guarded() -> None:
        with module._guard:
            answers.append(InferenceFuture[int]().done())

    answers: list[bool] = []
    thread = threading.Thread(target=ask_while_guarded, daemon=True)
    thread.start()
    thread.join(60)
    assert answers == [False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_finds_no_one_in_the_way() -> None:
    script = """
import os, threading
from trtopt.serving import request_queue as answer
held, forked = threading.Event(), threading.Event()
def hold():
    with answer._guard:
        held.set()
        forked.wait()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    os._exit(7 if not answer.InferenceFuture().done() else 1)
forked.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "7\n"


def test_other_names_are_missing_as_ever() -> None:
    with pytest.raises(AttributeError, match="'InferenceFuture' object has no attribute 'nothing'"):
        _ = InferenceFuture().nothing  # type: ignore[attr-defined]
