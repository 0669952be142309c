"""A plan written as a model of Triton's, and read back with Triton's own schema."""

from __future__ import annotations

import hashlib
import re
import resource
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st

import trtopt
from tests.support.brief_plans import few_simulated  # noqa: F401  (a fixture of every test here)
from tests.support.command_line import DIGITS, HELDOUT, CommandLine
from trtopt.api import plan as make_plan
from trtopt.errors import ArtifactError, OutputError, UsageError
from trtopt.files.atomic import write_atomically
from trtopt.files.manifests import read_manifest, read_plan
from trtopt.files.outputs import with_hash
from trtopt.measure.analysis.sweep_points import choices_of
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import Recipe
from trtopt.records import MAX_PROFILES, Backend, BatchPlan, BatchPolicy, Profile, ShapeRange, to_json
from trtopt.serving.triton import Served, readme
from trtopt.workflows.listener import Listener
from trtopt.workflows.plan.deploy import for_all_batches, tuned_sizes
from trtopt.workflows.sweep.folder import read_sweep
from trtopt.workflows.workbench import make_plans

pytest.importorskip("tritonclient")
# protobuf warns where it is a major version newer than what the client was made for
pytestmark = pytest.mark.filterwarnings("ignore:Protobuf gencode version:UserWarning")

SLO = "p50=500ms"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with one engine for batches 1 to 16; its result file may have any name."""
    folder = tmp_path_factory.mktemp("planned")
    trtopt.build(DIGITS, folder / "dynamic", batch=(1, 8, 16), dynamic=True, backend="onnxruntime")
    report = trtopt.bench(folder / "dynamic", batch=(1, 16), duration=0.1, warmup=0.05)
    write_atomically(folder / "dynamic" / "bench.json", to_json(report))
    make_plan(
        [folder / "dynamic"], folder / "digits.json", slo=SLO, rate=100.0, for_triton=True, timeout=0.01
    )
    return folder / "digits.json"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with an engine for each of three batch sizes."""
    folder = tmp_path_factory.mktemp("swept") / "digits.sweep"
    trtopt.sweep(
        DIGITS, folder, batch=(1, 3, 8), backend="onnxruntime", duration=0.05, warmup=0.01, precision="fp32"
    )
    return folder


def config_in(repository: Path, name: str = "digits") -> Any:
    """The config as Triton reads it (tritonclient's `model_config.proto`), by the rules of Triton's core."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    text = (repository / name / "config.pbtxt").read_text("utf-8")
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    # ValidateModelConfig and ValidateModelIOConfig of model_config_utils.cc
    assert config.name == name
    assert config.max_batch_size >= 0
    for tensor in (*config.input, *config.output):
        assert tensor.data_type != model_config_pb2.TYPE_INVALID
        assert tensor.dims
        assert config.max_batch_size or not tensor.HasField("reshape")
        assert all(axis == -1 or axis > 0 for axis in tensor.dims)
    assert all(len(one.dims) == 3 for one in (*config.input, *config.output) if one.is_non_linear_format_io)
    assert config.HasField("dynamic_batching") == (config.max_batch_size > 0)
    assert all(0 < size <= config.max_batch_size for size in config.dynamic_batching.preferred_batch_size)
    for warmup in config.model_warmup:
        assert 1 <= warmup.batch_size <= max(1, config.max_batch_size)
        assert {*warmup.inputs} == {one.name for one in config.input}
    return config


def run_as_triton(repository: Path, name: str = "digits") -> list[int]:
    """The batch sizes that the model ran with the config's shapes: from 1 to its largest."""
    import onnxruntime

    config = config_in(repository, name)
    version = max(
        (one for one in (repository / name).iterdir() if one.name.isdecimal()), key=lambda one: one.name
    )
    session = onnxruntime.InferenceSession(version / "model.onnx")
    sizes = range(1, config.max_batch_size + 1) if config.max_batch_size else (0,)
    for size in sizes:
        batch = [size] if size else []
        feeds = {one.name: np.zeros([*batch, *one.dims], np.float32) for one in config.input}
        made = session.run([one.name for one in config.output], feeds)
        assert [list(one.shape) for one in made] == [[*batch, *one.dims] for one in config.output]
    return list(sizes)


def changed(planned: Path, **fields: Any) -> Path:
    """The plan with other fields, beside it."""
    path = planned.with_name("changed.json")
    write_atomically(path, to_json(msgspec.structs.replace(read_plan(planned), **fields)))
    return path


def on_tensorrt(planned: Path, policy: BatchPolicy) -> Path:
    """The plan as TensorRT would have it; nothing of it is run."""
    plan: BatchPlan = read_plan(planned)
    content = b"an engine"
    (planned.parent / "batch.engine").write_bytes(content)
    artifact = plan.engines[0].artifact
    build = msgspec.structs.replace(artifact.plan, backend=Backend(name="tensorrt", version="8.6.1"))
    artifact = msgspec.structs.replace(
        artifact, path="batch.engine", sha256=hashlib.sha256(content).hexdigest(), plan=build
    )
    engine = msgspec.structs.replace(plan.engines[0], artifact=artifact)
    return changed(planned, engines=(engine,), policy=policy, workers=2)


def test_a_plan_becomes_a_model_that_the_schema_accepts(planned: Path, trtopt_cli: CommandLine) -> None:
    done = trtopt_cli("deploy", "triton", planned, "-o", "models")
    assert done.returncode == 0, done.stderr
    models = trtopt_cli.folder / "models"
    plan = read_plan(planned)
    config = config_in(models)
    assert (config.name, config.platform) == ("digits", "onnxruntime_onnx")
    assert config.max_batch_size == plan.policy.max_batch
    ((_, shape),) = plan.buckets[0].items()
    assert [tuple(one.dims) for one in config.input] == [shape]
    assert len(config.output) == 1
    engine = planned.parent / plan.engines[0].artifact.path
    assert (models / "digits" / "1" / "model.onnx").read_bytes() == engine.read_bytes()
    assert sorted(one.name for one in models.iterdir()) == ["digits"]
    told = (models / "digits" / "README.md").read_text("utf-8")
    assert "tritonserver --model-repository=/models" in told
    assert "perf_analyzer -m digits" in told


def told_for(planned: Path, **load: Any) -> str:
    """The README of a plan for another load."""
    plan = read_plan(planned)
    return readme_of(msgspec.structs.replace(plan, load=msgspec.structs.replace(plan.load, **load)))


def readme_of(plan: BatchPlan) -> str:
    """The README of a plan with one engine."""
    return readme(Served(plan.engines[0].artifact, plan.policy, plan.workers, plan), "m", 1)


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "my arrivals.txt"])
def test_the_readme_loads_the_model_at_the_rate_of_the_plan(planned: Path, arrivals: str) -> None:
    told = told_for(planned, arrivals=arrivals, rate=99.6)
    distribution = arrivals if arrivals == "constant" else "poisson"
    assert f"--request-rate-range=100 --request-distribution={distribution} " in told
    assert f"({arrivals} arrivals)" in told


def test_a_container_requests_gpus_only_where_the_plan_does(planned: Path) -> None:
    assert "--gpus" not in told_for(planned)
    told = told_for(on_tensorrt(planned, BatchPolicy(max_batch=16)))
    assert "docker run --rm --gpus=all -p" in told
    assert re.search(
        r"Start a server \(YY\.MM: \d\d\.\d\d (to|or) .*, the one whose notes name tensorrt ", told
    )


def test_what_the_plan_says_of_batching_is_in_the_config(planned: Path, tmp_path: Path) -> None:
    path = on_tensorrt(planned, BatchPolicy(max_batch=16, max_delay_ms=1.25, max_waiting=300))
    trtopt.deploy(path, tmp_path, name="digits")
    config = config_in(tmp_path)
    assert config.platform == "tensorrt_plan"
    assert (tmp_path / "digits" / "1" / "model.plan").read_bytes() == b"an engine"
    assert list(config.dynamic_batching.preferred_batch_size) == [16]
    assert config.dynamic_batching.max_queue_delay_microseconds == 1250
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 300
    assert [(group.count, group.kind == group.KIND_GPU) for group in config.instance_group] == [(2, True)]
    assert config.optimization.cuda.graphs
    assert [one.batch_size for one in config.model_warmup] == [1, 16]
    assert config.version_policy.latest.num_versions == 1


def test_an_engine_with_profiles_is_served_with_all_of_them_if_they_leave_no_batch_out(
    planned: Path, tmp_path: Path
) -> None:
    def profiled(*ranges: tuple[int, int], max_batch: int = 16) -> Path:
        path = on_tensorrt(planned, BatchPolicy(max_batch=max_batch))
        engine = read_plan(path).engines[0]
        multi_profile = tuple(
            Profile(
                batch=ShapeRange(min=(low,), opt=(high,), max=(high,)), shapes=engine.artifact.plan.shapes
            )
            for low, high in ranges
        )
        plan = msgspec.structs.replace(engine.artifact.plan, multi_profile=multi_profile)
        artifact = msgspec.structs.replace(engine.artifact, plan=plan)
        return changed(path, engines=(msgspec.structs.replace(engine, artifact=artifact),))

    trtopt.deploy(profiled((1, 4), (4, 16)), tmp_path, name="m")
    assert [list(group.profile) for group in config_in(tmp_path, "m").instance_group] == [["0", "1"]]
    trtopt.deploy(profiled((1, 4), (4, 8), (9, 16), max_batch=8), tmp_path, name="n")  # 9 > 8: fails to load
    assert [list(group.profile) for group in config_in(tmp_path, "n").instance_group] == [["0", "1"]]


@pytest.mark.long
def test_clients_are_informed_of_typed_tensors(planned: Path, tmp_path: Path) -> None:
    folder = tmp_path / "build"
    trtopt.build(
        DIGITS, folder, batch=(1, 8), dynamic=True, backend="onnxruntime",
        precision="int8", verdict=False, data=HELDOUT, io={"images": "int8"},
    )  # fmt: skip
    report = trtopt.bench(folder, batch=(1, 8), duration=0.1, warmup=0.05)
    write_atomically(folder / "bench.json", to_json(report))
    path = tmp_path / "typed.json"
    make_plan([folder], path, slo=SLO, rate=100.0, for_triton=True, timeout=0.01)
    trtopt.deploy(path, tmp_path / "models")
    (tensor,) = read_manifest(folder).io
    assert tensor.scale is not None
    assert f"- input 'images': int8, nchw, scale {tensor.scale:.6g}\n" in (
        tmp_path / "models" / "typed" / "README.md"
    ).read_text("utf-8")
    assert "Clients send" not in told_for(planned)


def test_triton_is_informed_of_vectorised_formats(planned: Path, tmp_path: Path) -> None:
    path = on_tensorrt(planned, BatchPolicy(max_batch=16))
    engine = read_plan(path).engines[0]
    plan = msgspec.structs.replace(engine.artifact.plan, io_layouts={"images": "hwc8"})
    artifact = msgspec.structs.replace(engine.artifact, plan=plan)
    trtopt.deploy(
        changed(path, engines=(msgspec.structs.replace(engine, artifact=artifact),)), tmp_path, name="m"
    )
    config = config_in(tmp_path, "m")
    assert [one.is_non_linear_format_io for one in config.input] == [True]
    assert [one.is_non_linear_format_io for one in config.output] == [False]
    fixed = msgspec.structs.replace(plan, batch=ShapeRange(min=(1,), opt=(1,), max=(1,)))
    artifact = msgspec.structs.replace(artifact, plan=fixed)
    single = (msgspec.structs.replace(engine, artifact=artifact),)
    path = changed(path, engines=single, policy=BatchPolicy(max_batch=1))
    with pytest.raises(UsageError, match="'images' is vectorised and has 4 axes"):
        trtopt.deploy(path, tmp_path, name="f")


def test_a_tensor_with_no_axis_but_the_batch_has_one_element_for_triton(
    planned: Path, tmp_path: Path
) -> None:
    """`dims` may not be empty: model_config_utils.cc of Triton's core asks for them."""
    plan = read_plan(planned)
    artifact = plan.engines[0].artifact
    ((name, shape),) = artifact.plan.shapes.items()
    flat = ShapeRange(min=shape.min[:1], opt=shape.opt[:1], max=shape.max[:1])
    artifact = msgspec.structs.replace(
        artifact,
        plan=msgspec.structs.replace(artifact.plan, shapes={name: flat}),
        outputs=tuple(msgspec.structs.replace(one, shape=("batch",)) for one in artifact.outputs),
    )
    engine = msgspec.structs.replace(plan.engines[0], artifact=artifact)
    trtopt.deploy(changed(planned, engines=(engine,), buckets={0: {name: ()}}), tmp_path, name="m")
    config = config_in(tmp_path, "m")
    for tensor in (*config.input, *config.output):
        assert (list(tensor.dims), tensor.HasField("reshape"), list(tensor.reshape.shape)) == ([1], True, [])
    assert [list(one.inputs[name].dims) for one in config.model_warmup] == [[1]] * len(config.model_warmup)


@pytest.mark.parametrize("shape", [(), (10, "batch")])
def test_a_tensor_whose_first_axis_is_not_the_batch_is_refused(
    planned: Path, tmp_path: Path, shape: tuple[int | str, ...]
) -> None:
    engine = read_plan(planned).engines[0]
    outputs = tuple(msgspec.structs.replace(one, shape=shape) for one in engine.artifact.outputs)
    artifact = msgspec.structs.replace(engine.artifact, outputs=outputs)
    path = changed(planned, engines=(msgspec.structs.replace(engine, artifact=artifact),))
    with pytest.raises(UsageError, match="'logits' has no batch axis in front"):
        trtopt.deploy(path, tmp_path, name="m")


def test_perf_analyzer_is_informed_of_open_axes_and_draws_no_indices(planned: Path) -> None:
    """By default it sends random bytes, and refuses a model with open axes."""
    assert "-i grpc \\\n" in told_for(planned)
    plan = read_plan(planned)
    artifact = plan.engines[0].artifact
    (spec,) = artifact.inputs
    ids = msgspec.structs.replace(spec, name="token ids", dtype="int64", shape=("batch", "length"))
    shapes = {ids.name: ShapeRange(min=(1, 1), opt=(8, 16), max=(16, 32))}
    artifact = msgspec.structs.replace(
        artifact, inputs=(ids,), plan=msgspec.structs.replace(artifact.plan, shapes=shapes)
    )
    engine = msgspec.structs.replace(plan.engines[0], artifact=artifact)
    told = readme_of(msgspec.structs.replace(plan, engines=(engine,), buckets={0: {ids.name: (16,)}}))
    assert "-i grpc --shape 'token ids:16' --input-data=zero \\\n" in told


def test_a_build_whose_manifest_is_damaged_leaves_no_version(planned: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dynamic"
    shutil.copytree(planned.parent / "dynamic", folder)
    (tmp_path / "m.json").write_bytes(planned.read_bytes())
    (folder / "manifest.json").write_text('{"schema": "trtopt.build/8"}')
    with pytest.raises(ArtifactError, match="cannot be read as a manifest"):
        trtopt.deploy(tmp_path / "m.json", tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_a_version_appears_with_its_model_or_not_at_all(planned: Path, tmp_path: Path) -> None:
    """Triton takes a folder without one for a model that fails. The engine is larger than files may be."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most))
    try:
        with pytest.raises(OutputError):
            trtopt.deploy(planned, tmp_path, name="digits")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert not list(tmp_path.rglob("1"))


def test_each_plan_is_a_version_more_as_long_as_clients_stay_the_same(planned: Path, tmp_path: Path) -> None:
    first = on_tensorrt(planned, BatchPolicy(max_batch=16, max_delay_ms=1.0))
    assert trtopt.deploy(first, tmp_path, name="m").name == "1"
    second = on_tensorrt(planned, BatchPolicy(max_batch=16, max_delay_ms=2.0))
    assert trtopt.deploy(second, tmp_path, name="m").name == "2"
    assert config_in(tmp_path, "m").dynamic_batching.max_queue_delay_microseconds == 2000
    with pytest.raises(UsageError, match=r"has another max_batch_size"):
        trtopt.deploy(on_tensorrt(planned, BatchPolicy(max_batch=8)), tmp_path, name="m")
    (tmp_path / "m" / "config.pbtxt").write_bytes(with_hash("nonsense {\n", "# {}"))
    with pytest.raises(ArtifactError, match="is not a valid Triton config"):
        trtopt.deploy(second, tmp_path, name="m")


def test_a_plan_with_an_engine_for_each_size_becomes_one_engine(
    swept: Path, tmp_path: Path, trtopt_cli: CommandLine
) -> None:
    plan = tmp_path / "digits.json"
    make_plan([swept], plan, slo=SLO, rate=100.0, for_triton=True, timeout=0.01)
    sizes = {1: "batch1", 3: "batch3", 8: "batch8"}
    found = {one.plan.label: one for one in read_manifest(swept / "builds" / "fp32").engines}
    path = f"{swept}/builds/fp32/"
    engines = [
        msgspec.structs.replace(
            read_plan(plan).engines[0],
            artifact=msgspec.structs.replace(found[label], path=path + found[label].path),
        )
        for label in sizes.values()
    ]
    policy = BatchPolicy(max_batch=8, max_delay_ms=1.0)
    write_atomically(
        plan, to_json(msgspec.structs.replace(read_plan(plan), engines=tuple(engines), policy=policy))
    )
    done = trtopt_cli("deploy", "triton", plan, "-o", "models")
    assert done.returncode == 0, done.stderr
    models = trtopt_cli.folder / "models"
    assert run_as_triton(models) == [*range(1, 9)]
    assert config_in(models).dynamic_batching.max_queue_delay_microseconds == 1000
    told = (models / "digits" / "README.md").read_text("utf-8")
    assert "The engine (batch1+2-3-3+4-8-8) was built" in told
    assert "with engines for batch1, batch3, batch8" in told
    assert sorted(one.name for one in trtopt_cli.folder.iterdir() if one.name.startswith(".")) == []


def test_a_sweep_is_served_up_to_its_knee(swept: Path, tmp_path: Path) -> None:
    trtopt.deploy(swept, tmp_path)
    (choices,) = choices_of(read_sweep(swept))
    config = config_in(tmp_path)
    high = choices.knee.setting.batch
    assert config.max_batch_size == (high if high > 1 else 0)
    assert max(run_as_triton(tmp_path)) == config.max_batch_size


@pytest.mark.parametrize("built", [{"batch": (1, 4)}, {"batch": 4}, {"batch": (2, 4, 4), "dynamic": True}])
def test_a_build_folder_is_served_with_every_batch_size(built: dict[str, Any], tmp_path: Path) -> None:
    trtopt.build(DIGITS, tmp_path / "digits", backend="onnxruntime", **built)
    before = {one.name: one.read_bytes() for one in (tmp_path / "digits").iterdir()}
    trtopt.deploy(tmp_path / "digits", tmp_path / "models")
    assert run_as_triton(tmp_path / "models") == [1, 2, 3, 4]
    assert before == {one.name: one.read_bytes() for one in (tmp_path / "digits").iterdir()}


@pytest.mark.parametrize("size", [1, 4])
def test_a_batch_size_that_the_model_fixes_is_served_without_batching(size: int, tmp_path: Path) -> None:
    model = onnx.load(DIGITS)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = size
    onnx.save(model, tmp_path / "fixed.onnx")
    trtopt.build(tmp_path / "fixed.onnx", tmp_path / "digits", backend="onnxruntime")
    trtopt.deploy(tmp_path / "digits", tmp_path / "models")
    config = config_in(tmp_path / "models")
    assert (config.max_batch_size, [list(one.dims) for one in config.input]) == (0, [[size, 1, 8, 8]])
    assert run_as_triton(tmp_path / "models") == [0]


def test_a_scalar_is_refused_where_nothing_is_batched(tmp_path: Path) -> None:
    typed, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    node = onnx.helper.make_node("Squeeze", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [typed("x", kind, [1, 1])], [typed("y", kind, [])])
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "m.onnx")
    trtopt.build(tmp_path / "m.onnx", tmp_path / "b", backend="onnxruntime")
    with pytest.raises(UsageError, match="'y' is a scalar"):
        trtopt.deploy(tmp_path / "b", tmp_path / "models")


def test_a_sweep_over_lengths_names_the_build_that_can_be_deployed(
    sequence_model: Path, trtopt_cli: CommandLine
) -> None:
    given = ("--backend", "onnxruntime", "--duration", "0.05", "--warmup", "0.01")
    done = trtopt_cli("sweep", sequence_model, *given, "--batch", "1,2", "--axis", "length=4,8", "-o", "s")
    assert done.returncode == 0, done.stderr
    told = trtopt_cli.fails(2, "deploy", "triton", "s", "-o", "models")
    assert "or a file that" in trtopt_cli.fails(2, "deploy", "triton", "s/builds", "-o", "models")
    (remedy,) = re.findall(r"trtopt (build .*)", told)
    words = remedy.replace("MODEL.onnx", str(sequence_model)).replace("FOLDER", "digits").split()
    assert trtopt_cli(*words, "--backend", "onnxruntime").returncode == 0
    assert trtopt_cli("deploy", "triton", "digits", "-o", "models").returncode == 0
    assert config_in(trtopt_cli.folder / "models").max_batch_size == 8
    plan = ("plan", "s", "-o", "p.json", "--lengths", "4:0.5,8:0.5", "--slo", SLO, "--rate", "10")
    assert trtopt_cli(*plan, "--for-triton").returncode == 0
    assert {*read_plan(trtopt_cli.folder / "p.json").buckets} == {8}
    assert trtopt_cli("deploy", "triton", "p.json", "-o", ".").returncode == 0
    assert [list(one.dims)[-2:] for one in config_in(trtopt_cli.folder, "p").input] == [[8, 8]]


def test_the_whole_shape_is_loaded_where_nothing_is_batched(
    sequence_model: Path, trtopt_cli: CommandLine
) -> None:
    given = ("--batch", "1", "--axis", "length=4,8,8", "--backend", "onnxruntime")
    assert trtopt_cli("build", sequence_model, "-o", "v1.5", *given).returncode == 0
    assert "another --name" in trtopt_cli.fails(2, "deploy", "triton", "v1.5", "-o", ".")
    assert trtopt_cli("deploy", "triton", "v1.5", "-o", "models").returncode == 0
    models = trtopt_cli.folder / "models"
    config = config_in(models, "v1.5")
    assert config.max_batch_size == 0
    whole = [list(one.inputs[config.input[0].name].dims) for one in config.model_warmup]
    told = (models / "v1.5" / "README.md").read_text("utf-8")
    assert f":{','.join(map(str, whole[0]))} " in told


def test_a_plan_whose_folders_were_built_again_is_refused(swept: Path, tmp_path: Path) -> None:
    shutil.copytree(swept, tmp_path / "s")
    make_plan([tmp_path / "s"], tmp_path / "p.json", slo=SLO, rate=100.0, for_triton=True, timeout=0.01)
    plan = read_plan(tmp_path / "p.json")
    (large,) = [
        one for one in read_manifest(tmp_path / "s/builds/fp32").engines if one.plan.label == "batch8"
    ]
    engine = msgspec.structs.replace(
        plan.engines[0], artifact=msgspec.structs.replace(large, path=f"s/builds/fp32/{large.path}")
    )
    write_atomically(
        tmp_path / "p.json",
        to_json(msgspec.structs.replace(plan, engines=(engine,), policy=BatchPolicy(max_batch=8))),
    )
    model = onnx.load(DIGITS)
    model.graph.name = "another"
    onnx.save(model, tmp_path / "another.onnx")
    trtopt.build(tmp_path / "another.onnx", tmp_path / "s/builds/fp32", backend="onnxruntime", force=True)
    with pytest.raises(ArtifactError, match="no longer has the model"):
        trtopt.deploy(tmp_path / "p.json", tmp_path / "models")
    assert not (tmp_path / "models").exists() or list((tmp_path / "models").iterdir()) == []


def test_a_file_in_the_models_place_is_found_before_a_build(swept: Path, tmp_path: Path) -> None:
    (tmp_path / "digits").write_text("ours")
    notes: list[str] = []
    with pytest.raises(OutputError):
        trtopt.deploy(swept, tmp_path, listener=Listener(note=notes.append))
    assert not any("building" in note for note in notes)
    assert (tmp_path / "digits").read_text() == "ours"


def test_a_model_with_other_clients_is_refused_before_a_build(tmp_path: Path) -> None:
    trtopt.build(DIGITS, tmp_path / "digits", batch=(1, 4), backend="onnxruntime")
    config = tmp_path / "models" / "digits" / "config.pbtxt"
    config.parent.mkdir(parents=True)
    config.write_bytes(with_hash("max_batch_size: 8\n", "# {}"))
    notes: list[str] = []
    with pytest.raises(UsageError, match="has another max_batch_size, platform, input"):
        trtopt.deploy(tmp_path / "digits", tmp_path / "models", listener=Listener(note=notes.append))
    assert not any("building" in note for note in notes)


@given(st.sets(st.integers(1, 60), min_size=1))
def test_one_engine_has_a_profile_for_each_size_and_runs_every_size(sizes: set[int]) -> None:
    model = read_onnx(DIGITS)
    plans = make_plans(model, Recipe(batch=tuple(sizes)), Backend(name="tensorrt", version="10.1.0"))
    high = max(sizes)
    tuned = tuned_sizes(plans, high)
    plan = for_all_batches(plans[-1], model, tuned)
    assert tuned[-1] == high
    assert {*tuned} <= sizes
    assert len(sizes) > MAX_PROFILES or {*tuned} == sizes
    assert len(plan.profiles) == len(tuned) <= MAX_PROFILES
    assert [size for span in plan.spans for size in range(span.low, span.high + 1)] == [*range(1, high + 1)]
    assert all(plan.profiles[span.profile].batch.opt == (span.high,) for span in plan.spans)


def test_what_triton_cannot_run_is_refused(planned: Path, tmp_path: Path) -> None:
    engine = read_plan(planned).engines[0]
    build = engine.artifact.plan
    rtx = msgspec.structs.replace(build, backend=Backend(name="tensorrt-rtx", version="1.2"))
    artifact = msgspec.structs.replace(engine.artifact, plan=rtx)
    with pytest.raises(UsageError, match="cannot run engines of tensorrt-rtx"):
        trtopt.deploy(
            changed(planned, engines=(msgspec.structs.replace(engine, artifact=artifact),)), tmp_path
        )
    with pytest.raises(UsageError, match="not a model name"):
        trtopt.deploy(planned, tmp_path, name="../up")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_is_not_the_plans_is_not_deployed(planned: Path, tmp_path: Path) -> None:
    path = on_tensorrt(planned, BatchPolicy(max_batch=16))
    (planned.parent / "batch.engine").write_bytes(b"another engine")
    with pytest.raises(ArtifactError, match="not the file that the plan vouches for"):
        trtopt.deploy(path, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_others_wrote_into_a_models_readme_stays(planned: Path, tmp_path: Path) -> None:
    trtopt.deploy(planned, tmp_path, name="digits")
    told = tmp_path / "digits" / "README.md"
    assert "# digits, version 1" in told.read_text("utf-8")
    trtopt.deploy(planned, tmp_path, name="digits")
    assert "# digits, version 2" in told.read_text("utf-8")
    told.write_text("ours")
    trtopt.deploy(planned, tmp_path, name="digits")
    assert told.read_text() == "ours"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["digits"]
