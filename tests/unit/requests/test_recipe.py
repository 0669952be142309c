from pathlib import Path
from typing import Any

import pytest

from trtopt.errors import UsageError
from trtopt.recipe import Recipe, load_profile, shipped_profiles
from trtopt.requests.recipe import make_recipe

SHIPPED = sorted(file.stem for file in shipped_profiles().glob("*.toml"))


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return tmp_path / "own.toml"


def refused(profile: Path, text: str | bytes) -> UsageError:
    """The error that a profile with this content gives, which must name the file."""
    profile.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as caught:
        make_recipe(str(profile), {})
    assert str(profile) in caught.value.problem or "out of range" in caught.value.problem
    assert caught.value.remedy
    return caught.value


# ── profiles ────────────────────────────────────────────────────────────────────────────────────────────


def test_profiles_are_shipped() -> None:
    assert {"default", "quick", "throughput"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_profile_is_a_valid_recipe(name: str) -> None:
    assert make_recipe(name, {}).batch


def test_the_shipped_profiles_say_what_their_names_promise() -> None:
    assert make_recipe("default", {}) == Recipe(batch=(1,), backend="auto")
    assert make_recipe("quick", {}).opt_level == 1
    throughput = make_recipe("throughput", {})
    assert throughput.batch == (1, 8, 32, 64, 128)
    assert throughput.opt_level == 4


def test_without_profile_and_flags_a_recipe_leaves_everything_to_the_builder() -> None:
    assert make_recipe(None, {}) == Recipe()


def test_a_profile_may_set_every_key_but_what_loads_code(profile: Path) -> None:
    profile.write_text(
        """
        batch = [1, 8]
        dynamic = true
        backend = "tensorrt"
        opt_level = 3
        workspace_mib = 256
        tactic_sources = ["JIT_CONVOLUTIONS"]
        timing_cache = "timing.cache"
        compute_capability = ["8.9"]
        jobs = 2
        [shapes]
        ids = "Nx1,Nx128,Nx512"
        """
    )
    assert make_recipe(str(profile), {}) == Recipe(
        batch=(1, 8),
        dynamic=True,
        shapes={"ids": "Nx1,Nx128,Nx512"},
        backend="tensorrt",
        opt_level=3,
        workspace_mib=256,
        tactic_sources=("JIT_CONVOLUTIONS",),
        timing_cache="timing.cache",
        compute_capability=("8.9",),
        jobs=2,
    )


def test_a_recipe_gives_axes_one_length_or_a_smallest_a_tuned_and_a_largest_one(profile: Path) -> None:
    profile.write_text("axes = {seq = 128, past = [1, 16, 64]}")
    assert make_recipe(str(profile), {}).axes == {"seq": (128,), "past": (1, 16, 64)}


@pytest.mark.parametrize("lengths", ["[]", "[1, 2]", "[3, 2, 4]", "[0]", "[1, 2, 2147483648]"])
def test_lengths_of_an_axis_that_are_no_range_are_refused(profile: Path, lengths: str) -> None:
    profile.write_text(f"axes = {{seq = {lengths}}}")
    with pytest.raises(UsageError, match=r"^--axis seq: "):
        make_recipe(str(profile), {})


def test_recipes_do_not_share_their_shapes() -> None:
    first, second = make_recipe(None, {}), make_recipe(None, {})
    first.shapes["x"] = "N"
    assert second.shapes == {}
    assert Recipe().shapes == {}


# ── flags ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("key", "of_profile", "of_flag"),
    [
        ("batch", (1, 8), (4,)),
        ("dynamic", True, False),
        ("shapes", {"ids": "Nx8"}, {"mask": "Nx9"}),
        ("backend", "tensorrt", "onnxruntime"),
        ("opt_level", 3, 0),
        ("workspace_mib", 256, 1),
        ("tactic_sources", ("CUDNN",), ("JIT_CONVOLUTIONS",)),
        ("timing_cache", "a", "b"),
        ("compute_capability", ("8.6",), ("8.9", "12.0")),
        ("jobs", 2, 1),
    ],
)
def test_a_flag_overrides_the_profile_and_none_does_not(
    profile: Path, key: str, of_profile: Any, of_flag: Any
) -> None:
    profile.write_text(f"{key} = {_toml(of_profile)}\n")
    assert getattr(make_recipe(str(profile), {key: None}), key) == of_profile
    assert getattr(make_recipe(str(profile), {key: of_flag}), key) == of_flag
    assert getattr(make_recipe(None, {key: of_flag}), key) == of_flag


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return repr(value)


def test_a_flag_leaves_the_profiles_other_keys_alone() -> None:
    assert make_recipe("quick", {"batch": (2,)}) == Recipe(batch=(2,), opt_level=1)


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_key_is_named_and_the_known_ones_are_listed(profile: Path) -> None:
    error = refused(profile, "batches = [1]")
    assert "`batches`" in error.problem
    assert all(key in error.remedy for key in Recipe.__struct_fields__)


@pytest.mark.parametrize(
    ("key", "value", "flag"),
    [
        ("plugins", ("a.so",), "--plugin"),
        ("calib", "module:function", "--data module:function"),
        ("executor", "ray://elsewhere:10001", "--executor ray://elsewhere:10001"),
    ],
)
def test_a_profile_names_no_code_but_a_flag_may(profile: Path, key: str, value: Any, flag: str) -> None:
    error = refused(profile, f"{key} = {_toml(value)}")
    assert key in error.problem
    assert flag in error.remedy
    assert getattr(make_recipe(str(profile), {key: value}), key) == value


def test_a_profile_may_name_a_file_of_data(profile: Path) -> None:
    (profile.parent / "data.npz").touch()
    profile.write_text(f"calib = '{profile.parent / 'data.npz'}'")
    assert make_recipe(str(profile), {}).calib == str(profile.parent / "data.npz")


def test_an_unknown_flag_is_named() -> None:
    with pytest.raises(UsageError, match="`batches`"):
        make_recipe(None, {"batches": (1,)})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch", '"1,8"'),
        ("batch", "8"),
        ("batch", "[1, 8.5]"),
        ("batch", '["8"]'),
        ("batch", "[true]"),
        ("batch", "{ x = 1 }"),
        ("batch", "1979-05-27"),
        ("dynamic", "1"),
        ("dynamic", '"yes"'),
        ("shapes", '"ids:Nx8"'),
        ("shapes", "{ ids = 8 }"),
        ("backend", "1"),
        ("opt_level", '"3"'),
        ("opt_level", "3.5"),
        ("opt_level", "true"),
        ("workspace_mib", "inf"),
        ("tactic_sources", '"CUDNN"'),
        ("timing_cache", "true"),
        ("compute_capability", "[8.9]"),
        ("jobs", '"2"'),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_and_its_key_named(profile: Path, key: str, value: str) -> None:
    assert f"$.{key}" in refused(profile, f"{key} = {value}").problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch", "[]"),
        ("batch", "[0]"),
        ("batch", "[8, -1]"),
        ("jobs", "0"),
        ("jobs", "257"),
        ("opt_level", "-1"),
        ("opt_level", "6"),
        ("workspace_mib", "0"),
        ("workspace_mib", "1048577"),
        ("workspace_mib", "1" + "0" * 30),
    ],
)
def test_a_value_out_of_range_is_refused_and_named_with_its_option(
    profile: Path, key: str, value: str
) -> None:
    profile.write_text(f"{key} = {value}")
    with pytest.raises(UsageError) as caught:
        make_recipe(str(profile), {})
    option = {"jobs": "--jobs", "opt_level": "--opt-level", "workspace_mib": "--workspace"}.get(key)
    expected = f"{option} {value}: out of range" if option else f"{key} = {value}"
    assert expected in caught.value.problem
    assert caught.value.remedy


def test_a_batch_beyond_what_a_tensor_can_have_is_refused(profile: Path) -> None:
    profile.write_text(f"batch = [1{'0' * 30}]")
    with pytest.raises(UsageError, match="batch"):
        make_recipe(str(profile), {})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("jobs", 1),
        ("jobs", 256),
        ("opt_level", 0),
        ("opt_level", 5),
        ("workspace_mib", 1),
        ("workspace_mib", 1 << 20),
    ],
)
def test_the_ends_of_a_range_belong_to_it(key: str, value: int) -> None:
    assert getattr(make_recipe(None, {key: value}), key) == value


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"executor": "slurm"}, "--executor slurm: no such executor"),
        ({"executor": "ray://host"}, "no such executor"),
        ({"gpu_model": "L4"}, "--gpu-model L4: jobs run on this host"),
        ({"executor": "ray", "retries": -1}, "--retries -1"),
    ],
)
def test_an_executor_that_is_none_and_options_without_one_are_refused(
    flags: dict[str, object], problem: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_recipe(None, flags)
    assert problem in caught.value.problem


def test_where_jobs_run_is_no_part_of_what_is_built() -> None:
    assert make_recipe(None, {"executor": "ray", "gpu_model": "L4", "retries": 0}).given == ()


def test_an_unknown_profile_is_refused_with_the_nearest_name_and_all_names() -> None:
    with pytest.raises(UsageError) as caught:
        load_profile("througput")
    assert "--recipe througput: no such recipe" in caught.value.problem
    assert "did you mean 'throughput'?" in caught.value.remedy
    assert all(name in caught.value.remedy for name in SHIPPED)


def test_an_unknown_profile_that_is_like_no_name_is_refused_with_all_names() -> None:
    with pytest.raises(UsageError) as caught:
        load_profile("zzz")
    assert "did you mean" not in caught.value.remedy
    assert all(name in caught.value.remedy for name in SHIPPED)


@pytest.mark.parametrize("name", ["", "missing.toml", "./missing", "quick/"])
def test_a_profile_that_is_no_file_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no such recipe"):
        load_profile(name)


def test_a_folder_is_no_profile(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UsageError, match="no such recipe"):
        load_profile(str(tmp_path / "folder.toml"))


@pytest.mark.parametrize(
    "text",
    [
        "batch = [1",
        "batch 1",
        "batch = [1]\nbatch = [2]",
        '{"batch": [1]}',
        b"batch = [1] # \xff",
        b"\x00",
        "batch = " + "[" * 20_000,
        "jobs = " + "9" * 5000,
    ],
    ids=[
        "open list",
        "no equals sign",
        "key given twice",
        "JSON",
        "not UTF-8",
        "NUL",
        "endless nesting",
        "endless number",
    ],
)
def test_a_profile_that_is_not_toml_is_refused(profile: Path, text: str | bytes) -> None:
    assert "as TOML" in refused(profile, text).problem


def test_a_profile_larger_than_any_profile_is_refused(profile: Path) -> None:
    assert "larger" in refused(profile, "# " + "x" * (1 << 20)).problem


@pytest.mark.parametrize(
    ("from_file", "written"), [(False, "--precision fp61"), (True, "precision = 'fp61'")]
)
def test_a_value_out_of_a_closed_set_names_the_set(from_file: bool, written: str, profile: Path) -> None:
    profile.write_text('precision = "fp61"\n')
    with pytest.raises(UsageError) as caught:
        make_recipe(str(profile), {}) if from_file else make_recipe(None, {"precision": "fp61"})
    assert caught.value.problem.endswith(f"{written}: no such choice")
    assert caught.value.remedy == "choose among fp32, fp16, bf16, int8, fp8, int4, best"
