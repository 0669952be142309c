"""One engine with several optimisation profiles on a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import trtopt
from tests.support.gpu_digits import DIGITS, HELDOUT, IMAGES, SOURCES, close
from trtopt.api import plan
from trtopt.device.backends import open_target
from trtopt.errors import UsageError
from trtopt.files.atomic import write_atomically
from trtopt.files.manifests import read_manifest
from trtopt.records import to_json
from trtopt.serving import EnginePool

RANGES = ((1, 1, 4), (4, 8, 16), (20, 32, 32))
"""Nothing holds 17 to 19."""


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu") / "profiles"
    trtopt.build(DIGITS, folder, ranges=RANGES, dynamic=True, backend="tensorrt", tactic_sources=SOURCES)
    return folder


def test_the_engine_has_the_profiles_of_its_manifest(profiles: Path, binding: str) -> None:
    (engine,) = read_manifest(profiles).engines
    assert engine.builder_config["optimization_profiles"] == "3"
    target = open_target("tensorrt")
    session = target.load((profiles / engine.path).read_bytes())
    told = [one["images"] for one in session.profiles]
    assert told == [profile.shapes["images"] for profile in engine.plan.profiles]
    for batch, profile in ((1, 0), (4, 0), (5, 1), (16, 1), (20, 2), (32, 2)):
        context = session.context({"images": (batch, 1, 8, 8)})
        assert context._context.active_optimization_profile == profile  # type: ignore[attr-defined]
        context.close()
    with pytest.raises(UsageError, match=r"shape \(17, 1, 8, 8\) is outside"):
        session.context({"images": (17, 1, 8, 8)})
    session.close()
    target.close()


def test_a_pool_answers_rows_under_every_profile_with_graphs_and_two_workers(
    profiles: Path, binding: str, right: np.ndarray
) -> None:
    def ask(number: int) -> bool:
        count = 1 + number % 40
        return close(pool.run(IMAGES[number : number + count])["logits"], right[number : number + count])

    with EnginePool.open(profiles, workers=2) as pool, ThreadPoolExecutor(4) as threads:
        assert all(threads.map(ask, range(400)))
        usage = pool.usage()
        assert (usage.replaced, usage.graph_refused) == (0, None)
        assert usage.graphs > 0


def test_bench_measures_under_the_profile_that_suits_and_a_pool_goes_by_it(
    profiles: Path, binding: str
) -> None:
    report = trtopt.bench(profiles, duration=0.3, data=HELDOUT, layers=True)
    assert [point.batch for point in report.points] == [1, 4, 5, 8, 16, 20, 32]
    for point in report.points:
        assert point.layers is not None
        assert point.layers.layers
    write_atomically(profiles / "bench.json", to_json(report))
    with EnginePool.open(profiles) as pool:
        (engine,) = pool.catalogue.engines
        assert [len(offer.latency_ms) for offer in engine.offers] == [2, 3, 2]


def test_a_plan_with_profiles_is_made_and_verified_here(profiles: Path, tmp_path: Path) -> None:
    report = trtopt.bench(profiles, duration=0.5, memory=True)
    write_atomically(profiles / "bench.json", to_json(report))
    made = plan(
        [profiles], tmp_path / "plan.json", slo="p99=50ms", rate=500.0, memory_bytes=1 << 30, verify=True
    )
    assert made.memory_bytes is not None
    done = made.verification
    assert done is not None
    assert done.answered == done.requests
