"""Plans that were edited by hand: none is served under which nothing could run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import trtopt
from tests.support.brief_plans import few_simulated  # noqa: F401  (a fixture of every test here)
from tests.support.command_line import DIGITS
from trtopt.api import plan as make_plan
from trtopt.errors import ArtifactError
from trtopt.records import to_json
from trtopt.serving import EnginePool


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    trtopt.build(DIGITS, folder / "build", batch=(1, 8), backend="onnxruntime")
    report = trtopt.bench(folder / "build", duration=0.05, warmup=0.01)
    (folder / "build" / "bench.json").write_bytes(to_json(report))
    make_plan([folder / "build"], folder / "plan.json", slo="p50=500ms", rate=100.0, timeout=0.01)
    return folder / "plan.json"


def edited(planned: Path, **fields: Any) -> Path:
    document = msgspec.json.decode(planned.read_bytes())
    for name, value in fields.items():
        (document if name == "workers" else document["policy"])[name] = value
    path = planned.with_name("edited.json")
    path.write_bytes(msgspec.json.encode(document))
    return path


def test_a_plan_as_it_was_written_is_served(planned: Path) -> None:
    EnginePool.open(edited(planned, workers=2)).close()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"workers": 0}, "workers is 0, one at least is needed"),
        ({"workers": -3}, "workers is -3, one at least is needed"),
        ({"max_batch": 0}, "max_batch is 0, a whole number from 1 on is needed"),
        ({"max_waiting": 0}, "max_waiting is 0, a whole number from 1 on is needed"),
        ({"max_delay_ms": -1.0}, "max_delay_ms is -1.0, a number from 0 on is needed"),
    ],
)
def test_a_plan_under_which_nothing_could_run_is_refused(
    planned: Path, tmp_path: Path, fields: dict[str, float], told: str
) -> None:
    path = edited(planned, **fields)
    with pytest.raises(ArtifactError, match=f"edited.json: cannot be read as a plan: {told}"):
        EnginePool.open(path)
    with pytest.raises(ArtifactError, match=told):
        trtopt.deploy(path, tmp_path / "models")
    assert not (tmp_path / "models").exists()
