"""ONNX Runtime in its own process: what goes in and out, its death, and what is left of it."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from trtopt.device.ort import reference
from trtopt.device.ort.reference import (
    CannotRun,
    Crashed,
    Mapped,
    Refused,
    Run,
    Unoptimised,
    ort_process as current,
)
from trtopt.errors import OutputError
from trtopt.onnxio import disk_space, model_file
from trtopt.onnxio.model_file import WEIGHTS_FILE, runnable


def model(text: str) -> bytes:
    return parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}').SerializeToString()


ADD = model("g (float[N] x) => (float[N] y) {y = Add(x, x)}")
ONES = np.ones(3, np.float32)


def test_what_is_no_data_is_refused_and_the_process_goes_on() -> None:
    session = Unoptimised(ADD)
    with pytest.raises(CannotRun, match="arrays of numbers and text alone"):
        session.run({"x": np.array([object()])})
    assert session.run({"x": ONES})["y"].tolist() == [2, 2, 2]


def test_sequences_and_text_come_back() -> None:
    texts = model("g (string[N] x) => (string[N] y) {y = Identity(x)}")
    given = np.array(["ü", "b"], object)
    assert Unoptimised(texts).run({"x": given})["y"].tolist() == ["ü", "b"]
    proto = onnx.load_from_string(model("g (float[N] x) => (float[N] y) {y = SequenceConstruct(x, x)}"))
    kind = onnx.helper.make_tensor_sequence_value_info("y", onnx.TensorProto.FLOAT, None)
    proto.graph.output[0].CopyFrom(kind)
    found = Unoptimised(proto.SerializeToString()).run({"x": ONES})
    assert [part.tolist() for part in found["y"]] == [[1, 1, 1]] * 2


def die_in_midst(session: Unoptimised) -> Crashed:
    os.kill(current()._process.number, signal.SIGKILL)
    with pytest.raises(Crashed) as caught:
        session.run({"x": ONES})
    return caught.value


def test_a_death_is_told_to_those_whose_sessions_it_took_and_others_go_on() -> None:
    first, second = Unoptimised(ADD), Unoptimised(ADD)
    assert "was ended by SIGKILL while running it" in die_in_midst(first).problem
    with pytest.raises(Crashed, match="was ended by SIGKILL"):
        second.run({"x": ONES})
    assert Unoptimised(ADD).run({"x": ONES})["y"].tolist() == [2, 2, 2]


def test_an_interruption_ends_the_process_and_the_next_request_starts_another() -> None:
    session = Unoptimised(ADD)
    process = current()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    loop = model(
        """g (int64 n, float[3] x) => (float[3] y) <bool go = {1}>
        {y = Loop(n, go, x) <body = b (int64 i, bool c, float[3] a) => (bool d, float[3] e)
        {d = Identity(c) e = Sin(a)}>}"""
    )
    endless = Unoptimised(loop)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            endless.run({"n": np.array(1 << 62), "x": ONES})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert process._process.wait() == -signal.SIGKILL
    with pytest.raises(Crashed, match="interruption"):
        session.run({"x": ONES})
    assert Unoptimised(ADD).run({"x": ONES})["y"].tolist() == [2, 2, 2]


def test_threads_may_ask_at_a_time() -> None:
    session = Unoptimised(ADD)
    wrong: list[int] = []

    def ask(number: int) -> None:
        for _ in range(50):
            value = np.full(1000, number, np.float32)
            if set(session.run({"x": value})["y"].tolist()) != {2.0 * number}:
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.fixture
def weight(tmp_path: Path) -> np.ndarray:
    """2,000 numbers that are mapped from a file, behind 100 bytes."""
    values = np.arange(2000, dtype=np.float32)
    (tmp_path / "w").write_bytes(bytes(100) + values.tobytes())
    return np.asarray(np.memmap(tmp_path / "w", np.uint8, "r", 60)[40:]).view(np.float32).reshape(20, 100)


def with_weight(weight: np.ndarray) -> Unoptimised:
    """A model that adds the weight, which is given beside it."""
    proto = onnx.load_from_string(
        model("g (float[20,100] x, float[1] w) => (float[20,100] y) {y = Add(x, w)}")
    )
    del proto.graph.input[1]
    tensor = onnx.TensorProto(name="w", data_type=1, dims=weight.shape, data_location=1)
    tensor.external_data.add(key="location", value=WEIGHTS_FILE)
    proto.graph.initializer.append(tensor)
    return Unoptimised(proto.SerializeToString(), {"w": weight})


def test_where_weights_lie_in_files_is_found(tmp_path: Path, weight: np.ndarray) -> None:
    path = str(tmp_path / "w")
    assert reference._place_of(weight) == Mapped(path, 100, "float32", (20, 100))
    assert reference._place_of(weight[3:]) == Mapped(path, 100 + 1200, "float32", (17, 100))
    assert reference._place_of(weight.T) is None
    assert reference._place_of(weight + 1) is None
    (tmp_path / "w").unlink()
    assert reference._place_of(weight) is None


def test_weights_are_the_same_mapped_sent_or_gone_once_they_are_open(
    tmp_path: Path, weight: np.ndarray
) -> None:
    mapped, sent = with_weight(weight), with_weight(weight + 0)
    (tmp_path / "w").unlink()
    for session in (mapped, sent, with_weight(weight)):
        assert np.array_equal(session.run({"x": np.zeros((20, 100), np.float32)})["y"], weight)


@pytest.fixture
def narrow(tmp_path: Path) -> model_file.ModelFile:
    """A model of FP8 and INT4 weights, in a file beside it."""
    rng = np.random.default_rng(0)
    proto = onnx.load_from_string(
        model(
            """g (float[2,100] x) => (float[2,100] y) <float s = {0.1}> {
                a = DequantizeLinear(eight, s) b = MatMul(x, a)
                c = DequantizeLinear(four, s) y = MatMul(b, c)}"""
        )
    )
    proto.opset_import[0].version, proto.ir_version = 21, 10
    for name, dtype in (("eight", ml_dtypes.float8_e4m3fn), ("four", ml_dtypes.int4)):
        values = rng.integers(-7, 8, (100, 100)).astype(dtype)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    path = tmp_path / "narrow.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="narrow.data", size_threshold=1024)
    return model_file.load(path)


def test_weights_of_types_that_numpy_lacks_stay_out_of_the_message(
    narrow: model_file.ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message, *weights = runnable(narrow)
    assert len(message) < 1000
    x = np.random.default_rng(1).standard_normal((2, 100)).astype(np.float32)
    whole = Unoptimised(onnx.load(tmp_path / "narrow.onnx").SerializeToString())
    assert np.array_equal(Unoptimised(message, *weights).run({"x": x})["y"], whole.run({"x": x})["y"])
    none = type("Usage", (), {"free": 14_999})
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: none)
    with pytest.raises(OutputError, match="TMPDIR"):
        Unoptimised(message, *weights)


def test_sessions_that_nobody_holds_are_given_back() -> None:
    process = current()
    session = Unoptimised(ADD)
    request = Run(session=session._number, feed={"x": ONES})
    del session
    gc.collect()
    assert isinstance(process.answer(request, "running it"), Refused)


def test_it_ends_with_this_process_even_when_that_is_killed(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            Unoptimised(ADD)
            (tmp_path / "pid").write_text(str(current()._process.number))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    number = int((tmp_path / "pid").read_text())
    assert number != current()._process.number  # a fork has one of its own
    for _ in range(3000):
        try:
            if Path("/proc", str(number), "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):  # it may go while it is looked at
            return
        threading.Event().wait(0.01)
    pytest.fail("it outlived the process that started it")


FOR_EVER = model("""g (float[N] x) => (float[N] y)
    <int64 most = {4611686018427387904}, bool go = {1}>
    {y = Loop(most, go, x) <body = b (int64 i, bool c, float[N] a) => (bool again, float[N] s)
        {again = Identity(c) s = Sin(a)}>}""")


def test_a_model_that_runs_for_ever_is_ended_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reference, "_ANNOUNCED_S", 0.0)
    session = Unoptimised(FOR_EVER)
    busy = current()
    monkeypatch.setattr(reference, "_ANSWER_S", 1.0)
    with pytest.raises(Crashed, match="was ended: it had not answered after 1 s while running it") as caught:
        session.run({"x": ONES})
    assert "a Loop that does not end" in caught.value.remedy
    assert "busy with the model" in caplog.text
    assert busy._process.wait() == -signal.SIGKILL
    monkeypatch.undo()
    assert Unoptimised(ADD).run({"x": ONES})["y"].tolist() == [2, 2, 2]
