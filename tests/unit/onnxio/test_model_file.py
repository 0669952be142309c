"""Weights stay in the files that a model was read from: those must not change meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.rewrite_graphs import model
from tests.support.killing import run_fork_killed
from tests.support.writers import save_model
from trtopt.errors import InvalidModelError, OutputError
from trtopt.files.outputs import check_output
from trtopt.onnxio.external_data import weights_of
from trtopt.onnxio.model_file import MODEL, load, save


@pytest.mark.parametrize("external", [False, True])
def test_what_a_large_weight_is_said_to_be_is_kept(external: bool, tmp_path: Path) -> None:
    graph = "g (float[N,64] x) => (float[N,64] y) {a = MatMul(x, w) y = MatMul(a, v)}"
    made = model(f"# w: float[64,64]\n# v: float[64,64]\n{graph}")
    data = [item.raw_data for item in made.graph.initializer]
    made.graph.initializer[0].doc_string = "words"
    made.graph.initializer[0].metadata_props.add(key="author", value="us")
    onnx.save(
        made, tmp_path / "in.onnx", save_as_external_data=external, location="in.data", size_threshold=0
    )
    save(load(tmp_path / "in.onnx"), tmp_path / "out.onnx")
    first, second = onnx.load(tmp_path / "out.onnx").graph.initializer
    assert (first.doc_string, first.metadata_props[0].value) == ("words", "us")
    assert not second.HasField("doc_string")
    assert [item.raw_data for item in (first, second)] == data


@pytest.mark.parametrize("changed", ["in.onnx", "in.onnx.data"])
def test_a_model_that_is_written_to_meanwhile_is_not_taken_for_what_was_read(
    changed: str, tmp_path: Path
) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    graph = "# w: float[64,64]\ng (float[N,64] x) => (float[N,64] y) {y = MatMul(x, w)}"
    onnx.save(model(graph, 17), source, save_as_external_data=True, location="in.onnx.data", size_threshold=0)
    read = load(source)
    (tmp_path / changed).write_bytes((tmp_path / changed).read_bytes() + b"\0")
    with pytest.raises(InvalidModelError, match=f"{changed} was changed while trtopt worked on it"):
        save(read, out)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.onnx", "in.onnx.data"]


def external(path: Path, value: float) -> Path:
    """A model with one weight, all of this value, in a file of its own."""
    made = model("# w: float[64,64]\ng (float[N,64] x) => (float[N,64] y) {y = MatMul(x, w)}")
    made.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.full((64, 64), value, "f"), "w"))
    onnx.save(made, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    return path


def value_in(path: Path) -> float:
    (value,) = np.unique(onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0]))
    return float(value)


def killed_saves(*arguments: str) -> Iterator[None]:
    """Save in processes that are killed at each of their steps in turn, until one ends by itself."""
    for number in count(1):
        ended = run_fork_killed("replace,link,unlink,fsync", number, save_model, *arguments)
        if ended == 0:
            return
        assert ended == -signal.SIGKILL
        yield


def test_a_model_and_its_weights_are_the_earlier_or_the_new_ones_wherever_the_writer_is_killed(
    tmp_path: Path,
) -> None:
    second, out = external(tmp_path / "second.onnx", 2.0), tmp_path / "out.onnx"
    save(load(external(tmp_path / "first.onnx", 1.0)), out)
    seen = set()
    for _ in killed_saves(str(second), str(out)):
        seen.add(value_in(out))
        save(load(tmp_path / "first.onnx"), out)
        assert value_in(out) == 1.0
        assert len(list(tmp_path.glob("*out.onnx*"))) == 2  # nothing of the killed one stays
    assert seen == {1.0, 2.0}
    assert value_in(out) == 2.0
    assert len(list(tmp_path.glob("*out.onnx*"))) == 2


def test_a_model_and_what_is_beside_it_are_both_earlier_or_both_new_wherever_the_writer_is_killed(
    tmp_path: Path,
) -> None:
    first, second = (external(tmp_path / f"{value}.onnx", value) for value in (1.0, 2.0))
    out, table = tmp_path / "out.onnx", tmp_path / "out.onnx.json"
    save(load(first), out, (table, b"1.0"))
    seen = set()
    for _ in killed_saves(str(second), str(out), str(table)):
        until = time.monotonic() + 60
        while value_in(out) != float(table.read_text()) and time.monotonic() < until:
            time.sleep(0.01)  # what renames the files may end after its parent was killed
        assert value_in(out) == float(table.read_text())
        seen.add(value_in(out))
        save(load(first), out, (table, b"1.0"))
        assert len(list(tmp_path.glob("*out.onnx*"))) == 3  # nothing of the killed one stays
    assert seen == {1.0, 2.0}
    assert value_in(out) == float(table.read_text()) == 2.0


def test_weights_that_another_model_needs_stay(tmp_path: Path) -> None:
    first, out = external(tmp_path / "first.onnx", 1.0), tmp_path / "out.onnx"
    save(load(first), out)
    out.rename(tmp_path / "kept")  # whatever it is called
    save(load(external(tmp_path / "second.onnx", 2.0)), out)
    save(load(external(tmp_path / "third.onnx", 3.0)), out)
    assert [value_in(tmp_path / name) for name in ("kept", "out.onnx", "first.onnx")] == [1.0, 3.0, 1.0]
    assert len(list(tmp_path.glob("out.onnx*.data"))) == 2


def test_weights_of_others_are_never_replaced_or_removed(tmp_path: Path) -> None:
    source, out = external(tmp_path / "in.onnx", 1.0), tmp_path / "out.onnx"
    (tmp_path / "out.onnx.data").write_bytes(b"somebody's")
    for _ in range(2):
        save(load(source), out)
    assert (tmp_path / "out.onnx.data").read_bytes() == b"somebody's"
    assert weights_of(out) != [tmp_path / "out.onnx.data"]
    for name in ("in.onnx", "in.onnx.data"):
        with pytest.raises(OutputError):
            save(load(source), tmp_path / name)


def test_writers_of_one_model_leave_one_whole(tmp_path: Path) -> None:
    sources = [external(tmp_path / f"{number}.onnx", float(number)) for number in range(3)]
    out = tmp_path / "out.onnx"

    def write(source: Path) -> None:
        for _ in range(10):
            save(load(source), out)

    threads = [threading.Thread(target=write, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value_in(out) in (0.0, 1.0, 2.0)


def test_only_a_model_that_trtopt_wrote_and_nobody_edited_is_replaced(tmp_path: Path) -> None:
    source, out = external(tmp_path / "in.onnx", 1.0), tmp_path / "out.onnx"
    with pytest.raises(OutputError):
        check_output(source, MODEL)
    save(load(source), out)
    check_output(out, MODEL)
    save(load(out), tmp_path / "again.onnx")
    check_output(tmp_path / "again.onnx", MODEL)
    assert len(onnx.load(tmp_path / "again.onnx").metadata_props) == 1
    edited = onnx.load(out, load_external_data=False)
    edited.graph.node[0].name = "mine"
    onnx.save(edited, out)
    with pytest.raises(OutputError):
        check_output(out, MODEL)
