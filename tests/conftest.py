"""Signals mean the same to every run of the tests, wherever they are started; their caches are their own."""

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Property tests have no deadline: how fast an example runs is the machine's affair.
settings.register_profile("few", deadline=None, max_examples=20)
settings.register_profile("full", deadline=None, max_examples=200)  # `make test-all` names it
settings.load_profile("few")

# pytest rewrites the asserts of a file once, not once in each process of each run: half of what collecting
# takes. What tests start reads the caches, and writes none beside the files that are a test's user's.
sys.dont_write_bytecode = False
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

# a shell that starts them in the background makes them, and what they start, deaf to it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup does it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as cores: a third of the time of tests goes by waiting for processes."""
    return len(os.sched_getaffinity(0)) * 3 // 2


@pytest.fixture(scope="session", autouse=True)
def store_of_timing_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Builds, those of worker processes too, leave the user's store alone."""
    os.environ["TRTOPT_CACHE_DIR"] = str(tmp_path_factory.mktemp("store"))
    yield
    del os.environ["TRTOPT_CACHE_DIR"]


@pytest.fixture(scope="module", autouse=True)
def garbage() -> None:
    """Before a pass garbage is collected: not among all that every file of tests has imported."""
    gc.collect()
    gc.freeze()
