"""Errors name what the caller wrote: options on the command line, parameters in Python."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trtopt
from tests.support.paths import ROOT
from trtopt.cli.main import cli
from trtopt.errors import TrtoptError
from trtopt.options import declared_in, in_python, parse_mib
from trtopt.requests.build import BuildRequest, SweepRequest
from trtopt.requests.measure import BenchRequest, CompareRequest
from trtopt.requests.models import QuantizeRequest

DIGITS = str(ROOT / "models" / "digits" / "digits.onnx")
HELDOUT = str(ROOT / "models" / "digits" / "heldout.npz")


def failure_of(call: Callable[[], object]) -> TrtoptError:
    with pytest.raises(TrtoptError) as caught:
        call()
    return caught.value


def on_the_command_line(*words: str) -> TrtoptError:
    return failure_of(lambda: cli.main([*words], prog_name="trtopt", standalone_mode=False))


def called_in_python(job: str, *arguments: object, **keywords: object) -> TrtoptError:
    return failure_of(lambda: getattr(trtopt, job)(*arguments, **keywords))


def test_a_size_is_read_with_and_without_its_unit() -> None:
    assert [parse_mib("--x", text) for text in ("512", "4G", "1.5 GiB", "64m")] == [512, 4096, 1536, 64]


@pytest.mark.parametrize(
    ("words", "keywords", "option", "parameter"),
    [
        ("build PATH --workspace 4T", {"workspace_mib": 0}, "--workspace 4T:", "workspace_mib=0:"),
        ("bench PATH --duration 0", {"duration": 0}, "--duration 0:", "duration=0:"),
        ("bench PATH --contract fast", {"contract": "fast"}, "--contract fast:", "contract='fast':"),
        ("bench PATH --load x", {"load": "x"}, "--load x:", "load='x':"),
        ("bench PATH --trust x", {"trust": ["x"]}, "--trust x:", "trust=['x']:"),
        ("bench PATH --timeout -1", {"timeout": -1}, "--timeout -1:", "timeout=-1:"),
        (
            "bench PATH --backend onnxruntime --memory",
            {"backend": "onnxruntime", "memory": True},
            "--memory: ",
            "memory=True: ",
        ),
        (
            "bench PATH --no-transfers --pinned --contract serving --load x",
            {"transfers": False, "pinned": True, "contract": "serving", "load": "x"},
            "--load x",
            "load='x'",
        ),
        (
            f"profile PATH --result {HELDOUT} --probe-peaks",
            {"result": HELDOUT, "probe_peaks": True},
            "--probe-peaks: has no effect with --result, which measures nothing",
            "probe_peaks=True: has no effect with result",
        ),
        (
            "compare PATH --control 1 --threshold 3",
            {"control": 1, "threshold": 3},
            "--threshold 3:",
            "threshold=3:",
        ),
        ("compare PATH", {}, "--control K ", "control=K "),
        ("build PATH --plugin no.so", {"plugins": ["no.so"]}, "--plugin no.so:", "plugins=['no.so']:"),
        ("build PATH --shape x:Nx1", {"shapes": {"x": "Nx1"}}, "--shape x:", "shapes['x']:"),
        ("build PATH --precision int8", {"precision": "int8"}, "--precision int8 ", "precision='int8' "),
        (
            "build PATH --dynamic --batch 1,2,4,8",
            {"dynamic": True, "batch": [1, 2, 4, 8]},
            "--dynamic --batch 1,8,32",
            "dynamic=True batch=[1, 8, 32]",
        ),
        ("check PATH PATH --batch 1", {"against": DIGITS, "batch": 1}, "--batch: ", "batch: "),
        (
            "check PATH PATH --min-cosine 3",
            {"against": DIGITS, "min_cosine": 3},
            "--min-cosine 3:",
            "min_cosine=3:",
        ),
        (
            "cast PATH -o OUT --exclude x",
            {"output": "OUT", "exclude": ["x"]},
            "--exclude x:",
            "exclude=['x']:",
        ),
        (
            "rewrite PATH -o OUT --normalize images:mean=1:std=0",
            {"output": "OUT", "normalize": {"images": "mean=1:std=0"}},
            "--normalize image:mean=123.7,116.3,103.5:std=58.4,57.1,57.4",
            "normalize={'image': 'mean=123.7,116.3,103.5:std=58.4,57.1,57.4'}",
        ),
        (
            "quantize PATH -o OUT --precision int8",
            {"output": "OUT", "precision": "int8"},
            "--random-data to try",
            "random_data=True to try",
        ),
        (
            "plan PATH -o OUT --slo fast",
            {"output": "OUT", "slo": "fast"},
            "such as --slo p99=5ms",
            "such as slo='p99=5ms'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value and "-" in value else "",
)
def test_a_mistake_is_named_as_it_was_written(
    words: str,
    keywords: dict[str, Any],
    option: str,
    parameter: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    job, *arguments = words.split()
    if job == "check":
        arguments = ["PATH", "--against", *arguments[1:]]
    typed = on_the_command_line(job, *(DIGITS if word == "PATH" else word for word in arguments))
    called = called_in_python(job, [DIGITS] if job == "plan" else DIGITS, **keywords)
    assert type(typed) is type(called)
    assert option in str(typed)
    assert parameter in str(called)
    assert "--" not in called.problem
    assert called.args == (called.problem, called.remedy)


def test_text_is_no_dictionary_and_no_list_of_letters(tmp_path: Path) -> None:
    with pytest.raises(TrtoptError) as error:
        trtopt.build(DIGITS, tmp_path / "build", io="x=uint8")  # type: ignore[arg-type]
    assert str(error.value).startswith("io='x=uint8': not a dictionary\n")
    assert called_in_python("compare", DIGITS, listener={}).remedy == "give listener=Listener(KEY=VALUE, …)"
    with pytest.raises(TrtoptError) as error:
        trtopt.build(DIGITS, tmp_path / "build", exclude="head.*")
    assert error.value.remedy == "give exclude=['head.*']"


def test_command_lines_in_a_message_stay_command_lines() -> None:
    options = declared_in(BenchRequest)
    for text in (
        "time its layers with `trtopt bench --layers`",
        "calibrate again with trtopt quantize --data DATA",
        "run as root; or omit the flag, after sudo nvidia-smi --lock-gpu-clocks=MHZ",
    ):
        assert in_python(text, options) == text
    assert in_python("see trtopt bench --layers, or omit --layers", options).endswith(", or omit layers=True")


def test_the_next_word_of_a_sentence_is_no_value() -> None:
    options = declared_in(QuantizeRequest)
    assert in_python("--table and --data exclude", options) == "table and data exclude"
    assert in_python("--method entropy: unknown", options) == "method='entropy': unknown"
    assert in_python("--precision int8, or --target 10", options) == "precision='int8', or target='10'"


def test_an_option_that_the_function_lacks_remains() -> None:
    assert in_python("add --probe-peaks", declared_in(BuildRequest)) == "add --probe-peaks"


@pytest.mark.parametrize(
    ("request_kind", "text", "said"),
    [
        (BuildRequest, "--axis N: is the batch axis", "axes['N']: is the batch axis"),
        (
            BuildRequest,
            "give --normalize NAME:mean=…:std=…",
            "give normalize={'NAME': 'mean=…:std=…'}",
        ),
        (BuildRequest, "give --plugin LIB.so", "give plugins=[LIB.so]"),
        (SweepRequest, "use --precision fp16", "use precision='fp16'"),
        (CompareRequest, "--axis q: no such axis", "axes['q']: no such axis"),
    ],
)
def test_what_python_writes_otherwise_is_named_as_it_writes_it(
    request_kind: type, text: str, said: str
) -> None:
    assert in_python(text, declared_in(request_kind)) == said


def test_no_batch_size_is_not_the_default_one(tmp_path: Path) -> None:
    error = called_in_python("optimize", DIGITS, tmp_path / "o", batch=0, backend="onnxruntime")
    assert error.problem.startswith("batch=0: ")


@pytest.mark.parametrize("option", ["--recipe", "--cache-dir", "--timing-cache"])
def test_an_empty_name_is_not_an_omitted_one(option: str, tmp_path: Path) -> None:
    line = ("build", DIGITS, "-o", str(tmp_path / "engines"), "--backend", "onnxruntime")
    assert option in str(on_the_command_line(*line, option, ""))


def test_an_empty_name_in_python_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert called_in_python("build", DIGITS, "", backend="onnxruntime").problem.startswith("output: ")
    assert list(tmp_path.iterdir()) == []


def test_the_terms_of_a_contract_are_keywords() -> None:
    options = declared_in(BenchRequest)
    assert in_python("measure it with --no-graph", options) == "measure it with graph=False"
    assert in_python("measure with --queue 1, which", options) == "measure with queue_ahead=1, which"
    assert in_python("use fewer --streams, or --sync spin", options) == ("use fewer streams, or sync='spin'")
