"""What is fuzzed: by name, which seeds are mutated how, and what then reads the result as trtopt does."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz import fuzz_arrays as arrays, fuzz_mutators as change
from trtopt.records import TensorSpec

_X = TensorSpec(name="x", dtype="float32", shape=("N", 4))
_IDS = TensorSpec(name="ids", dtype="int64", shape=("N",))


@dataclass(frozen=True)
class Target:
    """`read` is given a folder with a copy of the seed's folder in which one file was mutated, and its path.

    `cases`: how many there are in a run of the tests. `whole`: the reader wants the files beside it too.
    """

    cases: int
    kind: str
    pattern: str
    mutate: change.Mutate
    read: Callable[[Path], object]
    whole: bool = False


def case_files(target: Target, seeds: Path) -> list[Path]:
    """The files that are mutated, in order."""
    return sorted((seeds / target.kind).glob(target.pattern))


def prepare(target: Target, seeds: list[Path], number: int, folder: Path) -> Path:
    """Write case `number` into an empty folder: everything about it follows from its number."""
    rng = Random(f"{target.kind}/{target.pattern}/{number}")
    seed = seeds[rng.randrange(len(seeds))]
    if target.whole:
        shutil.copytree(seed.parent, folder, dirs_exist_ok=True)
    path = folder / seed.name
    path.write_bytes(target.mutate(rng, seed.read_bytes()))
    return path


# ── readers ─────────────────────────────────────────────────────────────────────────────────────────────


def _model(path: Path) -> None:
    from trtopt.onnxio.model_info import read_onnx

    read_onnx(path)


def _weights(path: Path) -> None:
    from trtopt.data.feeds import specs_of
    from trtopt.onnxio.model_file import array_of, load

    model = load(path)
    for tensor in model.proto.graph.initializer:
        array_of(tensor, model.folder)
    specs_of(model.proto)


def _rewritten(path: Path) -> None:
    """As `trtopt lint` and `trtopt rewrite` read: shape inference and ONNX Runtime see the model."""
    from trtopt.onnxio.model_info import read_onnx
    from trtopt.recipe import Recipe
    from trtopt.records import Backend
    from trtopt.workflows.build.graph import rewrite_into
    from trtopt.workflows.listener import SILENT

    backend, recipe = Backend(name="tensorrt", version="10.16"), Recipe(rewrite="all")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        rewrite_into(Path(folder), read_onnx(path), recipe, backend, SILENT)


def _built(backend: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        import trtopt

        output = path.with_name("built")
        try:
            trtopt.build(path, output, backend=backend)
        finally:
            shutil.rmtree(output, ignore_errors=True)

    return read


def _recipe(path: Path) -> None:
    from trtopt.recipe import parse_shape_flag
    from trtopt.requests.recipe import make_recipe

    recipe = make_recipe(str(path), {})
    for name, shapes in recipe.shapes.items():
        parse_shape_flag(f"{name}:{shapes}")


def _spec(path: Path) -> None:
    from trtopt.export.spec import read_spec

    read_spec(path)


def _data(path: Path) -> None:
    from trtopt.data import open_data

    source = open_data(path)
    source.first_batch([_X, _IDS], {"x": (3, 4), "ids": (3,)})
    for _ in zip(source.batches([_X, _IDS], 4), range(8), strict=False):
        pass


def _build_folder(path: Path) -> None:
    """As `trtopt bench` and `trtopt build` onto it read: the engines, their points and shapes."""
    from rich.console import Console

    from trtopt.builder.shapes import shapes_at
    from trtopt.files.manifests import read_manifest, read_verified
    from trtopt.report.build import build_view
    from trtopt.workflows.bench.resolve_engines import points
    from trtopt.workflows.build.folder import receipts_of, verified_graphs

    manifest = read_manifest(path.parent)
    Console(quiet=True).print(build_view(manifest, str(path.parent)))
    verified_graphs(path.parent, manifest)
    for engine, size in points(manifest.engines, None):
        shapes_at(manifest.onnx.inputs, engine.plan, size)
        read_verified(path.parent / engine.path, engine.sha256)
    receipts_of(path.parent, manifest)


def _manifest(path: Path) -> None:
    from trtopt.builder.shapes import shapes_at
    from trtopt.files.manifests import read_manifest
    from trtopt.workflows.bench.resolve_engines import points

    manifest = read_manifest(path.parent)
    for engine, size in points(manifest.engines, None):
        shapes_at(manifest.onnx.inputs, engine.plan, size)


def _result(path: Path) -> None:
    from rich.console import Console

    from trtopt.report.bench import bench_view
    from trtopt.report.comparison import comparison_view
    from trtopt.requests.measure import CompareRequest
    from trtopt.workflows.compare.result_files import compare_files, read_result

    Console(quiet=True).print(bench_view(read_result(path)))
    outcome = compare_files(path, path, CompareRequest(path, path, force=True))
    Console(quiet=True).print(comparison_view(outcome))


def _page(path: Path) -> None:
    from trtopt.report.html.page import page_of
    from trtopt.report.html.pages import report_page
    from trtopt.workflows.report import collect

    page_of(report_page(collect(path.parent)), "", "trtopt")


def _profile(path: Path) -> None:
    from rich.console import Console

    from trtopt.report.profile import profile_view
    from trtopt.report.trace import trace
    from trtopt.workflows.profile.profile import read_profile

    report = read_profile(path)
    Console(quiet=True).print(profile_view(report))
    trace(report)


def _profiled(path: Path) -> None:
    from trtopt.api import profile

    profile(path.parent, result=path.parent / "result.json")


def _table(path: Path) -> None:
    from trtopt.precision.calibrate import read_table, with_method

    with_method(read_table(path), "entropy")


def _cache(path: Path) -> None:
    from trtopt.builder.timing_cache import CacheFile, identity_of
    from trtopt.device.backends import open_builder

    builder = open_builder("onnxruntime")
    CacheFile(path, identity_of(builder.backend, builder.device)).load()


def _inspector(path: Path) -> None:
    from trtopt.inspect.inspector import read_inspector

    read_inspector(path.read_text("utf-8", errors="replace"))


TARGETS = {
    "onnx": Target(2000, "onnx", "*.onnx", change.message_changed, _model, whole=True),
    "weights": Target(1500, "onnx", "[el]*.onnx", change.message_changed, _weights, whole=True),
    "recipe": Target(2400, "recipe", "*.toml", change.toml_changed, _recipe),
    "model spec": Target(2400, "spec", "*.toml", change.toml_changed, _spec),
    "npz": Target(2500, "npz", "*.npz", arrays.npz_changed, _data),
    "Polygraphy JSON": Target(2500, "polygraphy", "*.json", arrays.encoded_arrays_changed, _data),
    "manifest": Target(500, "build", "manifest.json", change.json_changed, _build_folder, whole=True),
    "stored manifest": Target(300, "results", "manifest.json", change.json_changed, _manifest),
    "result": Target(150, "build", "result.json", change.json_changed, _result),
    "stored result": Target(100, "results", "bench.json", change.json_changed, _result),
    "profile": Target(120, "build", "profile.json", change.json_changed, _profile),
    "page": Target(60, "build", "*[!s].json", change.json_changed, _page, whole=True),
    "calibration table": Target(3300, "table", "*.json", change.json_changed, _table),
    "timing cache": Target(1200, "cache", "timing.cache", arrays.header_changed, _cache),
    "inspector": Target(1000, "build", "batch?.layers.json", change.json_changed, _inspector),
}
"""Reading and judging: milliseconds a case."""

NATIVE = {
    "rewrite": Target(24, "onnx", "*.onnx", change.message_changed, _rewritten, whole=True),
    "build with TensorRT-RTX": Target(
        8, "onnx", "*.onnx", change.message_changed, _built("tensorrt-rtx"), whole=True
    ),
    "build with ONNX Runtime": Target(
        8, "onnx", "*.onnx", change.message_changed, _built("onnxruntime"), whole=True
    ),
    "profile of a folder": Target(24, "build", "*.json", change.json_changed, _profiled, whole=True),
}
"""Through ONNX Runtime and TensorRT's parser and builder: tenths of a second a case."""
