"""Options that several requests have, each declared once; a request may give one another help."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from trtopt.errors import UsageError
from trtopt.measure.contracts import DEFAULT, SUMMARIES, TERMS
from trtopt.options import Argument, Checked, Option, declared_in, parse_names, size_in
from trtopt.precision.bounds import Bounds, bounds_in
from trtopt.recipe import (
    MAX_AXIS,
    axis_length,
    parse_shape_flag,
    read_io_request,
    recipe_names,
    split_io,
    split_normalize,
)
from trtopt.records.tensors import IoRequest
from trtopt.targets import target_names
from trtopt.workflows.listener import SILENT, Listener

BackendName = Literal["auto", "tensorrt", "tensorrt-rtx", "onnxruntime"]


def model_names() -> Iterable[str]:
    """The models of the collection."""
    from trtopt.export.spec import files as models

    return models()


def method_names() -> Iterable[str]:
    """The calibration methods."""
    from trtopt.precision.ranges import AUTO, METHODS

    return (AUTO, *METHODS)


def rule_names() -> Iterable[str]:
    """The rewrite rules."""
    from trtopt.rewrite.rules import RULES

    return [rule.name for rule in RULES]


@dataclass(frozen=True, kw_only=True)
class Request(Checked):
    """What a public function is given."""

    listener: Annotated[Listener, Option("receives progress and notes.", flag=None)] = SILENT

    def refuse_all_but(self, useful: Collection[str], where: str) -> None:
        """Refuse what is given besides the options that are `useful` there."""
        kind: type = type(self)
        for one in declared_in(kind):
            is_given = getattr(self, one.name) not in (one.default, (), [], {})
            if is_given and one.name not in {"listener", *useful}:
                flag = str(one.flag).partition("/")[0]
                raise UsageError(f"{flag}: has no effect {where}", f"omit {flag}")


OnnxFile = Annotated[str | Path, Argument("the ONNX file.", "onnx")]


# ── how the command line writes values that are no plain text or number ────────────────────────────────

REFERENCE = "reference"


def parse_batches(text: str) -> tuple[int, ...]:
    """`1,8,32`, `1-8` or `pow2:32` as numbers, sorted, without repeats."""
    return tuple(sorted(set(_sizes("--batch", text, "batch sizes"))))


def parse_rules(text: str) -> tuple[str, ...]:
    """`layer-norm,drop-unused` as names of rules; nothing is none."""
    return tuple(name for name in parse_names(text) if name)


def parse_range(text: str) -> tuple[int, ...]:
    """`1,1,4` as numbers, sorted; in a range a repeat marks the tuned size."""
    return tuple(sorted(_sizes("--batch", text, "batch sizes")))


def parse_streams(text: str) -> tuple[int, ...]:
    """`1,2,4` as numbers of streams, sorted, without repeats."""
    return tuple(sorted(set(_sizes("--streams", text, "numbers of streams"))))


_MOST_SIZES = 4096
"""So many may be written as one range."""


def _sizes(flag: str, text: str, what: str) -> list[int]:
    found = [_range(part.strip()) for part in text.split(",")]
    if not all(found):
        option = flag if flag.endswith("=") else f"{flag} "
        raise UsageError(
            f"{option}{text!r}: {what} are whole numbers from 1 on, {MAX_AXIS:,} at most, or ranges of "
            f"{_MOST_SIZES:,} at most",
            f"write, say, {option}1,8,32, {option}1-8 or {option}pow2:32",
        )
    return [size for sizes in found for size in sizes]


def _range(text: str) -> Sequence[int]:
    """`8`, `1-8`, `1..8` or `pow2:32`, the powers of two up to 32; nothing of other text."""
    if text.startswith("pow2:"):
        last = axis_length(text.removeprefix("pow2:"))
        return [] if last is None else [1 << exponent for exponent in range(last.bit_length())]
    ends = [axis_length(end.strip()) for end in text.replace("..", "-").split("-")]
    low, high = ends[0], ends[-1]
    if low is None or high is None or len(ends) > 2 or high - low >= _MOST_SIZES:
        return []
    return range(low, high + 1)


def parse_lengths_of_axis(text: str) -> tuple[str, tuple[int, ...]]:
    """`seq=32,64,128` as the axis' name and its lengths, in their order."""
    name, equals, lengths = text.rpartition("=")
    if not equals or not name:
        raise UsageError(
            f"--axis {text!r}: expected NAME=MIN,OPT,MAX or NAME=N", "write, say, --axis seq=1,128,512"
        )
    return name, tuple(_sizes(f"--axis {name}=", lengths, "lengths of an axis"))


def parse_shape(text: str) -> tuple[str, str]:
    """`ids:Nx1,Nx128,Nx512` as the input's name and its shapes, as a recipe has them."""
    name, _ = parse_shape_flag(text)
    return name, text[len(name) + 1 :]


def parse_share(flag: str, text: str) -> float:
    """`5%` or `0.05`; not `5`, which might be 5 % or five times."""
    number = text.strip().removesuffix("%").rstrip()
    try:
        share = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        share = 0.0
    least, greatest = SHARE
    if not least <= share <= greatest:
        raise UsageError(
            f"{flag} {text}: not a share from {least:g} to {greatest:g} ({least:.2%} to {greatest:.2%})",
            "write 5% or 0.05",
        )
    return share


def parse_clock(text: str) -> int | bool:
    """MHz of `--lock-clocks`, or the reference, which the bare flag stands for."""
    if text == REFERENCE:
        return True
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(
            f"--lock-clocks {text!r}: not a clock in MHz", "write --lock-clocks 1500, or put the flag last"
        )
    return int(text)


def parse_bytes(text: str) -> int:
    """`8GiB` as bytes."""
    size = size_in(text)
    if size is None:
        raise UsageError(f"--memory {text}: not a size", "give one as 8GiB, 512MiB or 64KiB")
    return int(size)


_PER_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PART = re.compile(rf"({_NUMBER})\s*([smh])")
_MAX_S = 7 * 86400.0


def parse_budget(text: str) -> float:
    """`90s`, `30 m`, `1h30m` or plain seconds."""
    parts = _PART.findall(text)
    if parts and "".join(map("".join, parts)) == text.replace(" ", ""):
        seconds = sum(float(number) * _PER_UNIT[unit] for number, unit in parts)
    elif re.fullmatch(_NUMBER, text):
        seconds = float(text)
    else:
        raise UsageError(f"--budget {text}: not a duration", "write, say, --budget 30m, 90s or 1h30m")
    if not 0 < seconds <= _MAX_S:
        raise UsageError(f"--budget {text}: out of range", "give more than 0 seconds, at most a week")
    return seconds


def parse_shares_of_lengths(text: str) -> dict[int, float]:
    """`128:0.7,384:0.3` as shares by length."""
    shares: dict[int, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"([1-9]\d*):(\d+(?:\.\d+)?)", part.strip())
        if match is None or float(match[2]) <= 0 or int(match[1]) in shares:
            raise UsageError(
                f"--lengths {text}: {part!r} not a length with its share, or given twice",
                "give each length once with a share above 0, as --lengths 128:0.7,384:0.3",
            )
        shares[int(match[1])] = float(match[2])
    return shares


# ── inputs and their sizes ──────────────────────────────────────────────────────────────────────────────

Batch = Annotated[
    int | Sequence[int] | None, Option("", metavar="N,N,…", parse=parse_batches, range=(1, MAX_AXIS))
]
Shapes = Annotated[
    Mapping[str, str] | None,
    Option(
        "Shapes of an input with dynamic axes besides the batch: ids:Nx1,Nx128,Nx512 (N is the batch).",
        python='of inputs with dynamic axes besides the batch: `{"ids": "Nx1,Nx128,Nx512"}` (minimum, '
        "optimum, maximum; or one shape), N is the batch.",
        flag="--shape",
        metavar="INPUT:MIN,OPT,MAX",
        parse=parse_shape,
    ),
]
Axes = Annotated[
    Mapping[str, int | Sequence[int]] | None,
    Option(
        "Lengths of a dynamic axis by its name in the model, for all inputs: seq=1,128,512 or seq=128.",
        python='lengths of dynamic axes by their names, for all inputs: `{"seq": (1, 128, 512)}` or one '
        "length.",
        flag="--axis",
        metavar="NAME=MIN,OPT,MAX",
        parse=parse_lengths_of_axis,
    ),
]
Data = Annotated[str | Path | None, Option("", metavar="DATA", is_path=True)]


def samples(purpose: str) -> str:
    """The help of `--data`, for a purpose."""
    return f"{purpose}: an .npz, a folder of them, Polygraphy's JSON or FILE.py:function."


Inputs = Annotated[Data, samples("Inputs to measure with [default: seeded random ones]")]


@dataclass(frozen=True, kw_only=True)
class TensorOptions(Request):
    """What inputs and outputs become."""

    io: Annotated[
        Mapping[str, str] | None,
        Option(
            "Give an input or output another type (fp32, fp16, bf16, int8, uint8) and layout (nchw, nhwc; "
            "in engines also chw2, chw4, chw16, chw32, hwc8, hwc16).",
            python='types and layouts of inputs and outputs: `{"image": "uint8:nhwc"}`. Types: `fp32`, '
            "`fp16`, `bf16`, `int8`, `uint8`; layouts: `nchw`, `nhwc`, in engines also TensorRT's `chw2`, "
            "`chw4`, `chw16`, `chw32`, `hwc8`, `hwc16`; `trtopt.pack` makes such arrays [default: the "
            "model's].",
            metavar="NAME=TYPE[:LAYOUT]",
            parse=split_io,
        ),
    ] = None
    normalize: Annotated[
        Mapping[str, str] | None,
        Option(
            "Compute (x - mean) / std of an input in the graph, per channel, in the new input's units.",
            python="(x - mean) / std of inputs, computed in the graph, per channel, in the new input's "
            'units: `{"image": "mean=123.7,116.3,103.5:std=58.4,57.1,57.4"}` [default: none].',
            metavar="NAME:mean=…:std=…",
            parse=split_normalize,
        ),
    ] = None
    preprocess: Annotated[
        Literal["imagenet"] | None,
        Option("Normalise the image input in the graph with these means and deviations."),
    ] = None

    @property
    def io_request(self) -> IoRequest:
        """The types and layouts, read."""
        return read_io_request(self.io or {}, self.normalize or {}, self.preprocess)


# ── precision ───────────────────────────────────────────────────────────────────────────────────────────

Target = Annotated[str, Option("TensorRT to write for.", choices=target_names())]
Method = Annotated[str | None, Option("", metavar="NAME", names=method_names)]
Patterns = Annotated[Sequence[str], Option("", metavar="PATTERN")]
File = Annotated[str | Path | None, Option("", metavar="FILE", must_exist=True)]

# ── building ────────────────────────────────────────────────────────────────────────────────────────────

Profile = Annotated[
    str | None,
    Option(
        "A recipe, shipped or a TOML file; other options override it.",
        flag="--recipe",
        metavar="NAME|FILE",
        names=recipe_names,
        is_path=True,
    ),
]


@dataclass(frozen=True, kw_only=True)
class JobOptions(Request):
    """Where jobs run."""

    executor: Annotated[
        str | None,
        Option(
            "Where jobs run: here, or on a Ray cluster: that of $RAY_ADDRESS, or the one at an address "
            "[default: local].",
            metavar="local|ray|ray://HOST:PORT",
            names=lambda: ("local", "ray"),
            is_path=True,
        ),
    ] = None
    gpu_model: Annotated[
        str | None,
        Option("GPUs of the cluster to use [default: the first node's].", metavar="NAME"),
    ] = None
    retries: Annotated[
        int | None,
        Option(
            "How often a job is tried again whose node was lost [default: 2].", metavar="N", range=(0, 100)
        ),
    ] = None


CacheDir = Annotated[
    str | Path | None,
    Option(
        "The store of timing caches [default: $TRTOPT_CACHE_DIR, else ~/.cache/trtopt].",
        metavar="FOLDER",
        is_path=True,
    ),
]
Force = Annotated[bool, Option("Replace a build of another model.")]

# ── measuring ───────────────────────────────────────────────────────────────────────────────────────────

Backend = Annotated[
    BackendName | None,
    Option("Backend to run with [default: auto, the engines' own, or the CPU if there is no GPU]."),
]


_TERMS = ", ".join(f"{name} ({summary})" for name, summary in SUMMARIES.items())
Contract = Annotated[
    str | None,
    Option(
        f"The terms of the measurement: {_TERMS} [default: {DEFAULT}].",
        metavar="NAME",
        names=lambda: SUMMARIES,
    ),
]


@dataclass(frozen=True, kw_only=True)
class SweptTerms(Request):
    """Changes to a contract that a sweep has too; None is the contract's own."""

    graph: Annotated[bool | None, Option("Launch each query as a CUDA graph.", flag="--graph/--no-graph")] = (
        None
    )
    transfers: Annotated[
        bool | None,
        Option("Copy inputs and outputs in every query.", flag="--transfers/--no-transfers"),
    ] = None
    pinned: Annotated[
        bool | None,
        Option("Copy from and to page-locked host memory.", flag="--pinned/--no-pinned"),
    ] = None
    queue_ahead: Annotated[
        int | None, Option("Queries queued ahead of the one waited for.", flag="--queue")
    ] = None
    sync: Annotated[Literal["blocking", "spin"] | None, Option("How the host waits for the GPU.")] = None

    @property
    def terms(self) -> dict[str, object]:
        """What is given of them."""
        given = {name: getattr(self, name) for name in TERMS if name != "streams"}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class TermsOptions(SweptTerms):
    """All changes to a contract."""

    streams: Annotated[int | None, Option("Streams, each with its own context.")] = None

    @property
    def terms(self) -> dict[str, object]:
        """What is given of them."""
        return super().terms if self.streams is None else {**super().terms, "streams": self.streams}


UP_TO_A_DAY, UP_TO_A_WEEK = (0.001, 86400), (0.001, 7 * 86400)
"""Ranges of seconds."""
SHARE = (0.0001, 0.9999)
"""The range of a share of something."""
Duration = Annotated[
    float, Option("Seconds of sampling per pass, up to a day.", metavar="S", range=UP_TO_A_DAY)
]
Warmup = Annotated[
    float,
    Option("Seconds of warm-up before samples count, up to an hour.", metavar="S", range=(0, 3600)),
]
Timeout = Annotated[
    float | None,
    Option(
        "Seconds that the measurement of one batch size may take, up to a week [default: no limit].",
        metavar="S",
        range=UP_TO_A_WEEK,
    ),
]
Trust = Annotated[
    Sequence[str],
    Option(
        "Load an engine without a manifest, or a plugin that engines need: native code.",
        metavar="ENGINE|LIB.so",
        is_path=True,
    ),
]
Nvtx = Annotated[bool, Option("Mark the phases with NVTX ranges, for profilers.")]

# ── accuracy ────────────────────────────────────────────────────────────────────────────────────────────

MinCosine = Annotated[float | None, Option("Minimum cosine of every output, at most 1.", metavar="VALUE")]


@dataclass(frozen=True, kw_only=True)
class BoundsOptions(Request):
    """What every output must meet; None is no bound."""

    min_cosine: MinCosine = None
    min_sqnr: Annotated[float | None, Option("Minimum SQNR of every output, in dB.", metavar="DB")] = None
    max_error: Annotated[
        float | None,
        Option("Maximum absolute error of every output, in its own unit.", metavar="VALUE"),
    ] = None
    min_top1: Annotated[float | None, Option("Minimum top-1 agreement, 0 to 1.", metavar="SHARE")] = None

    @property
    def bounds(self) -> Bounds:
        """All of them."""
        return bounds_in({name: getattr(self, name) for name in Bounds.__struct_fields__})
