"""DATA: every kind of it gives the same batches; what does not fit is named."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from trtopt.data import SampleSource, open_data
from trtopt.data.fit import sample_axes
from trtopt.data.readers import Arrays, read_npz, write_npz
from trtopt.data.source import fingerprint_of
from trtopt.errors import DataError, UsageError
from trtopt.records import TensorSpec

X = TensorSpec(name="x", dtype="float32", shape=("batch", 3))
IDS = TensorSpec(name="ids", dtype="int64", shape=("batch",))


def samples(count: int = 5) -> Arrays:
    return {
        "x": np.arange(count * 3, dtype=np.float32).reshape(count, 3),
        "ids": np.arange(count, dtype=np.int64),
    }


def saved(path: Path, **arrays: object) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def read(source: SampleSource, inputs: Sequence[TensorSpec] = (X, IDS), size: int = 2) -> list[Arrays]:
    return list(source.batches(inputs, size))


def lengths(batches: Sequence[Arrays]) -> list[int]:
    return [len(batch["x"]) for batch in batches]


# ── the kinds ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["npz", "compressed", "folder", "json", "function"])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SampleSource:
    """Five samples, in two files or feeds where the kind has such."""
    parts = [{name: array[cut] for name, array in samples().items()} for cut in (slice(0, 3), slice(3, 5))]
    if request.param == "npz":
        return open_data(saved(tmp_path / "d.npz", **samples(), labels=np.arange(5)))
    if request.param == "compressed":
        np.savez_compressed(tmp_path / "d.npz", **samples())  # type: ignore[arg-type]
        return open_data(tmp_path / "d.npz")
    if request.param == "folder":
        for name, part in zip(("b", "a"), reversed(parts), strict=True):
            saved(tmp_path / f"{name}.npz", **part)
        return open_data(tmp_path)
    if request.param == "json":
        from polygraphy.json import save_json

        save_json(parts, str(tmp_path / "d.json"))
        return open_data(tmp_path / "d.json")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made_up_feeds.py").write_text(
        "import numpy as np\n"
        "def feeds():\n"
        "    x = np.arange(15, dtype=np.float32).reshape(5, 3)\n"
        "    yield {'x': x[:3], 'ids': np.arange(3)}\n"
        "    yield {'x': x[3:], 'ids': np.arange(3, 5)}\n"
    )
    sys.modules.pop("made_up_feeds", None)
    return open_data("made_up_feeds:feeds")


def test_every_kind_gives_the_same_batches_again_and_again(source: SampleSource) -> None:
    for _ in range(2):
        batches = read(source)
        assert lengths(batches) == [2, 2, 1]
        for name, array in samples().items():
            joined = np.concatenate([batch[name] for batch in batches])
            np.testing.assert_array_equal(joined, array)
            assert joined.dtype == array.dtype


def test_the_first_batch_has_just_the_shapes_requested(source: SampleSource) -> None:
    wanted = {"x": (8, 3), "ids": (8,)}
    batch = source.first_batch([X, IDS], wanted)
    np.testing.assert_array_equal(batch["ids"], [0, 1, 2, 3, 4, 0, 1, 2])
    assert {name: array.shape for name, array in batch.items()} == wanted
    np.testing.assert_array_equal(source.first_batch([IDS], {"ids": (4,)})["ids"], [0, 1, 2, 3])


@given(parts=st.lists(st.integers(1, 7), min_size=1, max_size=5), size=st.integers(1, 9))
def test_batches_are_full_but_for_the_last_however_the_data_is_cut(parts: list[int], size: int) -> None:
    class Cut:
        names = lengths = None

        def pieces(self, rows: object) -> object:
            start = 0
            for part in parts:
                yield {"ids": np.arange(start, start + part)}
                start += part

    batches = list(SampleSource("cut", [Cut()]).batches([IDS], size))  # type: ignore[list-item]
    assert {len(batch["ids"]) for batch in batches[:-1]} <= {size}
    assert 1 <= len(batches[-1]["ids"]) <= size
    np.testing.assert_array_equal(np.concatenate([b["ids"] for b in batches]), np.arange(sum(parts)))


# ── shapes and types ────────────────────────────────────────────────────────────────────────────────────


def test_types_are_converted_where_nothing_but_precision_is_lost(tmp_path: Path) -> None:
    source = open_data(saved(tmp_path / "d.npz", x=np.ones((2, 3)), ids=np.ones(2, np.uint8)))
    batch = read(source)[0]
    assert (batch["x"].dtype, batch["ids"].dtype) == (np.float32, np.int64)


def test_bfloat16_comes_back_from_a_file_that_has_no_name_for_it(tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    spec = TensorSpec(name="x", dtype="bfloat16", shape=("n", 3))
    batch = next(open_data(saved(tmp_path / "d.npz", x=array)).batches([spec], 2))
    assert batch["x"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(batch["x"], array)


def test_a_fixed_batch_takes_its_own_size_and_leaves_the_rest(tmp_path: Path) -> None:
    source = open_data(saved(tmp_path / "d.npz", **samples()))
    fixed = TensorSpec(name="x", dtype="float32", shape=(2, 3))
    assert lengths(read(source, [fixed], size=64)) == [2, 2]
    with pytest.raises(DataError, match="too few samples") as caught:
        read(source, [TensorSpec(name="x", dtype="float32", shape=(8, 3))])
    assert "at least 8 samples" in caught.value.remedy


def test_what_has_no_axis_of_samples_is_given_whole_with_every_batch(tmp_path: Path) -> None:
    source = open_data(saved(tmp_path / "d.npz", **samples(), scale=np.float32(2), box=np.ones((1, 4))))
    scale = TensorSpec(name="scale", dtype="float32", shape=())
    box = TensorSpec(name="box", dtype="float32", shape=(1, 4))
    batches = read(source, [X, scale, box])
    assert [(b["x"].shape, b["scale"].shape, b["box"].shape) for b in batches] == [
        ((2, 3), (), (1, 4)), ((2, 3), (), (1, 4)), ((1, 3), (), (1, 4))]  # fmt: skip


@pytest.mark.parametrize("name", ["batch", "?"])
def test_samples_along_a_later_axis_go_with_those_along_the_first(name: str, tmp_path: Path) -> None:
    x = TensorSpec(name="x", dtype="float32", shape=(name, 3))
    state = TensorSpec(name="state", dtype="float32", shape=(2, name, 8))
    numbers = np.arange(5, dtype=np.float32)
    arrays = {
        "x": np.repeat(numbers[:, None], 3, 1),
        "state": np.broadcast_to(numbers[None, :, None], (2, 5, 8)),
    }
    source = open_data(saved(tmp_path / "d.npz", **arrays))
    batches = read(source, [x, state], size=2)
    assert [(b["x"][:, 0].tolist(), b["state"][1, :, 3].tolist()) for b in batches] == [
        ([0, 1], [0, 1]), ([2, 3], [2, 3]), ([4], [4])]  # fmt: skip
    first = source.first_batch([x, state], {"x": (7, 3), "state": (2, 7, 8)})
    assert first["x"][:, 0].tolist() == first["state"][1, :, 3].tolist() == [0, 1, 2, 3, 4, 0, 1]
    shapes = {"x": (3, 3), "state": (2, 3, 8)}
    fixed = [TensorSpec(name=name, dtype="float32", shape=shape) for name, shape in shapes.items()]
    first = source.first_batch(fixed, shapes, sample_axes([x, state]))  # an engine of one batch size
    assert first["x"][:, 0].tolist() == first["state"][1, :, 3].tolist() == [0, 1, 2]


@pytest.mark.parametrize("has_state", [True, False])
def test_a_scalar_goes_whole_with_the_first_batch_of_several_pieces(has_state: bool, tmp_path: Path) -> None:
    specs = {
        "x": TensorSpec(name="x", dtype="float32", shape=("N", 3)),
        "rate": TensorSpec(name="rate", dtype="int64", shape=()),
    }
    if has_state:
        specs["state"] = TensorSpec(name="state", dtype="float32", shape=(2, "N", 8))
    arrays = {"x": np.ones((3, 3)), "rate": np.int64(16000), "state": np.ones((2, 3, 8))}
    for part in range(2):
        saved(tmp_path / f"{part}.npz", **{name: arrays[name] for name in specs})
    shapes = {"x": (5, 3), "rate": (), "state": (2, 5, 8)}
    first = open_data(tmp_path).first_batch(list(specs.values()), shapes)
    assert {name: array.shape for name, array in first.items()} == {name: shapes[name] for name in specs}
    assert first["rate"] == 16000


def test_samples_that_differ_in_number_along_their_axes_are_refused(tmp_path: Path) -> None:
    cache = TensorSpec(name="cache", dtype="float32", shape=(4, "batch", 2))
    source = open_data(saved(tmp_path / "d.npz", x=np.ones((5, 3)), cache=np.ones((4, 6, 2))))
    with pytest.raises(DataError, match="inputs 'x' and 'cache' hold 5 and 6 samples"):
        read(source, [X, cache])


def test_a_batch_ends_where_another_axis_changes_its_length(tmp_path: Path) -> None:
    for name, width in (("a", 3), ("b", 3), ("c", 7)):
        saved(tmp_path / f"{name}.npz", x=np.ones((2, width), np.float32))
    spec = TensorSpec(name="x", dtype="float32", shape=("batch", "width"))
    shapes = [batch["x"].shape for batch in open_data(tmp_path).batches([spec], 3)]
    assert shapes == [(3, 3), (1, 3), (2, 7)]


def test_arrays_in_fortran_order_are_read_too(tmp_path: Path) -> None:
    array = np.asfortranarray(samples()["x"])
    batches = read(open_data(saved(tmp_path / "d.npz", x=array)), [X])
    np.testing.assert_array_equal(np.concatenate([b["x"] for b in batches]), array)


def test_a_large_array_in_fortran_order_is_refused_before_it_is_read(tmp_path: Path) -> None:
    spec = TensorSpec(name="x", dtype="uint8", shape=("n", 1 << 20))
    array = np.zeros((257, 1 << 20), np.uint8, order="F")
    np.savez_compressed(tmp_path / "d.npz", x=array)
    with pytest.raises(DataError, match=r"0\.3 GiB at once") as error:
        next(iter(open_data(tmp_path / "d.npz").batches([spec], 1)))
    assert "C order" in str(error.value)


def test_samples_are_never_all_in_memory(tmp_path: Path) -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=("n", 1 << 16))  # 256 KiB a sample
    np.savez_compressed(tmp_path / "d.npz", x=np.zeros((256, 1 << 16), np.float32))
    source = open_data(tmp_path / "d.npz")
    tracemalloc.start()
    try:
        assert sum(len(batch["x"]) for batch in source.batches([spec], 4)) == 256
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20  # of 64 MiB


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────

BAD = {
    "name": ({"y": np.ones((5, 3), np.float32)}, "no array named 'x' (it has 'y')"),
    "trailing": ({"x": np.ones((5, 4), np.float32)}, "samples of shape (4,), expected (3,)"),
    "rank": ({"x": np.ones(3, np.float32)}, "expected (3,)"),
    "scalar": ({"x": np.float32(1)}, "expected (3,)"),
    "type": ({"x": np.full((5, 3), 1j)}, "complex128 does not fit float32 (sample 0)"),
    "text": ({"x": np.full((5, 3), "a")}, "does not fit float32"),
    "overflow": ({"x": np.full((5, 3), 1e300)}, "of sample 0 does not fit float32"),
    "empty": ({"x": np.ones((0, 3), np.float32)}, "too few samples"),
}


@pytest.mark.parametrize("case", BAD)
def test_data_that_does_not_fit_is_named(case: str, tmp_path: Path) -> None:
    arrays, message = BAD[case]
    with pytest.raises(DataError) as caught:
        read(open_data(saved(tmp_path / "d.npz", **arrays)), [X])
    assert message in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sample", [0, 3, 4])
def test_a_value_that_is_not_finite_is_named_with_its_sample(
    value: float, sample: int, tmp_path: Path
) -> None:
    arrays = samples()
    arrays["x"][sample, 1] = value
    with pytest.raises(DataError, match=rf"input 'x': value .* of sample {sample} is not finite"):
        read(open_data(saved(tmp_path / "d.npz", **arrays)))


@pytest.mark.parametrize(("dtype", "value"), [("int32", 2**40), ("uint8", 300), ("uint8", -1)])
def test_integers_that_the_input_cannot_hold_are_named(dtype: str, value: int, tmp_path: Path) -> None:
    spec = TensorSpec(name="ids", dtype=dtype, shape=("n",))
    source = open_data(saved(tmp_path / "d.npz", ids=np.array([1, value])))
    with pytest.raises(DataError, match=f"{value} of sample 1 does not fit {dtype}"):
        list(source.batches([spec], 8))
    source = open_data(saved(tmp_path / "e.npz", ids=np.array([1, 2])))
    assert [batch["ids"].dtype for batch in source.batches([spec], 8)] == [dtype]


@pytest.mark.parametrize(
    ("dtype", "value", "remedy"),
    [
        ("float32", 2**24 + 1, "astype('float32')"),
        ("float16", 2049, "astype('float16')"),
        ("float16", 10**6, "clean"),
    ],
)
def test_integers_that_a_float_would_round_are_refused_and_others_taken(
    dtype: str, value: int, remedy: str, tmp_path: Path
) -> None:
    spec = TensorSpec(name="ids", dtype=dtype, shape=("n",))
    with pytest.raises(DataError, match=f"{value} of sample 1 does not fit {dtype}") as caught:
        list(open_data(saved(tmp_path / "d.npz", ids=np.array([1, value]))).batches([spec], 8))
    assert remedy in caught.value.remedy
    (batch,) = open_data(saved(tmp_path / "e.npz", ids=np.array([1, -2048]))).batches([spec], 8)
    assert (batch["ids"].dtype, batch["ids"].tolist()) == (dtype, [1, -2048])


@pytest.mark.parametrize(("dtype", "remedy"), [("uint8", "such as raw pixels"), ("int8", "trtopt.pack")])
def test_floats_for_an_input_of_integers_are_not_to_be_converted(
    dtype: str, remedy: str, tmp_path: Path
) -> None:
    source = open_data(saved(tmp_path / "d.npz", x=np.full((2, 3), 0.5, np.float32)))
    with pytest.raises(DataError, match=rf"float32 does not fit {dtype} \(sample 0\)") as caught:
        list(source.batches([TensorSpec(name="x", dtype=dtype, shape=("n", 3))], 8))
    assert remedy in caught.value.remedy
    assert "astype" not in caught.value.remedy


def test_inputs_of_different_length_are_named_before_any_batch(tmp_path: Path) -> None:
    arrays = samples() | {"ids": np.arange(4)}
    with pytest.raises(DataError, match="'x' and 'ids' have 5 and 4 rows: they"):
        next(open_data(saved(tmp_path / "d.npz", **arrays)).batches([X, IDS], 2))


def test_rows_of_unlike_batches_are_counted_in_batches(tmp_path: Path) -> None:
    x, state = (TensorSpec(name=name, dtype="float32", shape=shape) for name, shape in
                (("x", (1, 3)), ("state", (2, 1, 8))))  # fmt: skip
    arrays = {"x": np.ones((6, 3), np.float32), "state": np.ones((6, 1, 8), np.float32)}
    source = open_data(saved(tmp_path / "d.npz", **arrays))
    with pytest.raises(DataError, match="have 6 and 6 rows, 1 and 2 of which make a batch"):
        next(source.batches([x, state], 1))
    arrays["state"] = np.ones((12, 1, 8), np.float32)
    assert len(list(open_data(saved(tmp_path / "e.npz", **arrays)).batches([x, state], 1))) == 6


def _npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (b"no header", "cannot be read as .npz"),
        (_npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (9, 3)}\n"), "needs"),
        (_npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 3)}\n"), "needs"),
        (_npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n") + b"12345678", "without pickles"),
        (_npy(b"__import__('os').abort()\n"), "cannot be read as .npz"),
    ],
)
def test_a_member_that_is_not_what_it_says_is_refused(member: bytes, message: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("x.npy", member)
    with pytest.raises(DataError) as caught:
        open_data(tmp_path / "d.npz")
    assert message in caught.value.problem


def test_a_file_that_was_cut_or_damaged_is_refused(tmp_path: Path) -> None:
    path = Path(saved(tmp_path / "d.npz", x=np.ones((500, 3), np.float32)))
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    with pytest.raises(DataError, match="cannot be read as"):
        open_data(path)
    path.write_bytes(whole[:2000] + b"\xff" + whole[2001:])
    with pytest.raises(DataError, match=r"cannot be read as .*CRC"):
        read(open_data(path), [X])


def test_a_feed_that_lacks_an_input_of_the_others_is_named(tmp_path: Path) -> None:
    from polygraphy.json import save_json

    save_json([{"x": np.ones((4, 3), np.float32)}, {}], str(tmp_path / "d.json"))
    with pytest.raises(DataError, match="sample 4"):
        read(open_data(tmp_path / "d.json"), [X])


@pytest.mark.parametrize(
    "text", ['{"x": 1}', "[1]", "[{", '[{"x": {"array": "%%"}}]', '[{"x": {"array": "AAAA"}}]', "[" * 99999]
)
def test_json_that_polygraphy_did_not_write_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(text)
    with pytest.raises(DataError, match=r"d\.json"):
        read(open_data(tmp_path / "d.json"), [X])


@pytest.mark.parametrize("text", ["nowhere.npz", "no/such:thing", ""])
def test_what_is_not_there_is_an_error_that_lists_the_kinds(text: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError) as caught:
        open_data(text or tmp_path / "empty")
    assert "module:function" in caught.value.remedy


def test_a_single_array_is_refused_with_a_line_that_makes_an_npz_of_it(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    with pytest.raises(UsageError, match="holds one array without a name") as caught:
        open_data(tmp_path / "x.npy")
    line = caught.value.remedy.partition("python -c ")[2].replace("INPUT", "x")
    subprocess.run([sys.executable, "-c", *shlex.split(line)], cwd=tmp_path, check=True)
    (batch,) = open_data(tmp_path / "inputs.npz").batches([X], 2)
    assert batch["x"].shape == (2, 3)


def test_a_function_is_named_by_its_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "my-data.py").write_text(
        "import numpy\nimport beside\n"
        "def samples():\n    yield {'x': numpy.full((2, 3), beside.VALUE, 'f4')}\n"
    )
    (tmp_path / "sub" / "beside.py").write_text("VALUE = 7")
    monkeypatch.chdir(tmp_path)
    (batch,) = open_data("sub/my-data.py:samples").batches([X], 2)
    assert batch["x"].tolist() == [[7.0] * 3] * 2
    with pytest.raises(UsageError, match=r"there is no file sub/none\.py"):
        open_data("sub/none.py:samples")


@pytest.mark.parametrize(
    ("body", "message"),
    [("return 3", "returned int"), ("return {'x': 1}", "returned dict"), ("raise ValueError('no')", "no"),
     ("yield 3", "yielded int"), ("yield [1]", "yielded list"), ("if False: yield {}", "too few samples"),
     ("yield {'y': [[1]]}", "no array named 'x' (it has 'y')")],
)  # fmt: skip
def test_a_function_that_yields_something_else_is_named(
    body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd_feeds.py").write_text(f"def feeds():\n    {body}\n")
    sys.modules.pop("odd_feeds", None)
    with pytest.raises(DataError) as caught:
        read(open_data("odd_feeds:feeds"), [X])
    assert message in caught.value.problem
    with pytest.raises(UsageError, match="no module named"):
        open_data("no_such_module_at_all:feeds")


def test_a_function_that_cannot_begin_again_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = "kept = iter([{'x': np.ones((2, 3), np.float32)}])"
    body = f"import numpy as np\n{kept}\ndef feeds():\n    return kept\n"
    (tmp_path / "spent_feeds.py").write_text(body)
    source = open_data("spent_feeds:feeds")
    next(iter(source.batches([X], 1)))  # not to the end
    with pytest.raises(DataError, match="returns an iterator that was read before") as caught:
        read(source, [X])
    assert "called for every pass" in caught.value.remedy


# ── what trtopt writes itself ───────────────────────────────────────────────────────────────────────────

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
ODD = st.sampled_from(
    ["file", "args", "kwds", "allow_pickle", "arr_0", "x", "x.npy", ".npy", "", "a/b", "../a"]
)


@given(names=st.sets(ODD | NAMES, min_size=1, max_size=6))
def test_arrays_of_any_name_are_read_as_they_were_written(
    names: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("own") / "own.npz"
    arrays = {name: np.arange(index + 3).reshape(1, -1) for index, name in enumerate(sorted(names))}
    arrays |= {"scalar": np.array(3.5), "columns": np.asfortranarray(np.arange(6).reshape(2, 3))}
    write_npz(path, arrays)
    found = read_npz(path)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
    assert open_data(path).has(min(names))


def test_a_name_that_no_file_of_arrays_can_hold_is_reported(tmp_path: Path) -> None:
    for name in ("a\0b", "x" * 70_000):
        with pytest.raises(DataError, match=r"an \.npz cannot hold that name"):
            write_npz(tmp_path / "own.npz", {name: np.zeros(1)})


# ── what is read of a folder ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a", "b"):
        saved(folder / f"{name}.npz", **samples())
    return folder


def test_what_lies_next_to_the_data_does_not_change_its_fingerprint(folder: Path) -> None:
    before = fingerprint_of(folder)
    (folder / "README").write_text("where these come from")
    (folder / "more").mkdir()
    os.mkfifo(folder / "pipe.npz")
    assert fingerprint_of(folder) == before
    assert sum(lengths(read(open_data(folder)))) == 10


def test_names_and_boundaries_of_the_files_are_part_of_the_fingerprint(folder: Path) -> None:
    first, second = folder / "a.npz", folder / "b.npz"
    seen = {fingerprint_of(folder)}
    second.rename(folder / "c.npz")
    seen.add(fingerprint_of(folder))
    (folder / "c.npz").rename(second)
    whole = first.read_bytes() + second.read_bytes()
    for cut in (0, 10, len(whole)):
        first.write_bytes(whole[:cut])
        second.write_bytes(whole[cut:])
        seen.add(fingerprint_of(folder))
    second.unlink()
    seen.add(fingerprint_of(folder))
    assert len(seen) == 6
    assert fingerprint_of(first) not in seen


def test_a_function_that_yields_other_values_in_a_later_pass_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    body = "import numpy as np\nrng = np.random.default_rng(0)\n"
    (tmp_path / "drawn.py").write_text(
        f"{body}def feeds():\n    yield {{'x': rng.random((2, 3), np.float32)}}\n"
    )
    read(open_data("drawn.py:feeds"), [X])
    with pytest.raises(DataError, match="other values of 'x' than before") as caught:
        read(open_data("drawn.py:feeds"), [X])
    assert "seed" in caught.value.remedy
