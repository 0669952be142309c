"""Recipes: what to build and how; their files, and how shapes, lengths, types and layouts are written."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, SupportsIndex, get_args

import msgspec

from trtopt.errors import UsageError
from trtopt.files.bounded_reading import read_toml, shipped_folder
from trtopt.records.build import RecipeSettings
from trtopt.records.tensors import (
    LINEAR,
    PREPROCESSING,
    TYPES,
    VECTORS,
    IoRequest,
    Normalisation,
    TensorFormat,
)

_MAX_DIGITS = 10
MAX_AXIS = 2**31 - 1
BATCH = "N"
GraphPrecision = Literal["fp32", "fp16", "bf16", "int8", "fp8", "int4"]
"""What can be written into a graph."""
Precision = Literal[GraphPrecision, "best"]
BEST: Final = "best"
"""Of all precisions, by measuring them."""
GRAPH_PRECISIONS: tuple[GraphPrecision, ...] = get_args(GraphPrecision)
QUANTIZED: tuple[GraphPrecision, ...] = ("int8", "fp8", "int4")
"""Those with Q/DQ."""
Rewriting = Literal["default", "all", "none"]
"""Which rewrite rules a build applies: those that earned it for its TensorRT, all of them, or none."""
LOCAL, RAY = "local", "ray"
WHERE = ("executor", "gpu_model", "retries")
"""The fields that say where jobs run."""
ShapeFlag = tuple[str, tuple[tuple[int | str, ...], ...]]


SELECTION_BUDGET = 3
"""Quantised engines that are built for a batch size at most, unless the user says otherwise."""


class Recipe(RecipeSettings, frozen=True, kw_only=True):
    """All options of a build, as a recipe file or options give them: `requests/` says what each means.

    `calib` is the keyword `data`, `bounds` has the names of `precision.bounds.Bounds`, and `ranges` replaces
    `batch` by MIN,OPT,MAX for each optimisation profile. None is what the model or the backend has.
    """

    batch: tuple[int, ...] | None = None
    ranges: tuple[tuple[int, ...], ...] = ()
    dynamic: bool = False
    shapes: dict[str, str] = {}  # noqa: RUF012  (msgspec copies mutable defaults)
    axes: dict[str, tuple[int, ...]] = {}  # noqa: RUF012
    backend: str = "auto"
    workspace_mib: int | None = None
    l2_limit_mib: int | None = None
    timing_cache: str | None = None
    compute_capability: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    precision: Precision | None = None
    calib: str | None = None
    forms: str | None = None
    selection_budget: int = SELECTION_BUDGET
    fused_plugins: bool = False
    exclude: tuple[str, ...] = ()
    verdict: bool = True
    bounds: dict[str, float] = {}  # noqa: RUF012
    rewrite: Rewriting = "default"
    add_rule: tuple[str, ...] = ()
    io: dict[str, str] = {}  # noqa: RUF012
    normalize: dict[str, str] = {}  # noqa: RUF012
    preprocess: str | None = None
    jobs: int = 1
    build_timeout: float | None = None
    executor: str = LOCAL
    gpu_model: str | None = None
    retries: int = 2

    @property
    def selects_precision(self) -> bool:
        """Whether engines in several precisions are to be measured, and the best one kept."""
        return self.verdict and self.precision in (*QUANTIZED, BEST)

    @property
    def given(self) -> tuple[str, ...]:
        """The fields that differ from their defaults, except where jobs run."""
        plain, names = Recipe(), Recipe.__struct_fields__
        return tuple(
            name for name in names if name not in WHERE and getattr(self, name) != getattr(plain, name)
        )


ANY_SIZES = Recipe()
"""Without lengths of axes or shapes, where these alone are asked of a recipe."""


def shipped_profiles() -> Path:
    """The folder of the profiles shipped with trtopt."""
    return shipped_folder("profiles")


def recipe_names() -> list[str]:
    """The names of the recipes shipped with trtopt."""
    return sorted(file.stem for file in shipped_profiles().glob("*.toml"))


def load_profile(name: str) -> dict[str, Any]:
    """Read a profile by name (from the shipped ones) or by path."""
    path = Path(name) if name.endswith(".toml") or "/" in name else shipped_profiles() / f"{name}.toml"
    if not path.is_file():
        known = recipe_names()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(
            f"--recipe {name}: no such recipe", f"{hint}shipped: {', '.join(known)}; or give a .toml file"
        )
    return read_toml(path, "give a TOML file of build settings; see profiles/ for examples")


def io_request(recipe: Recipe) -> IoRequest:
    """The types and layouts of a recipe, read."""
    return read_io_request(recipe.io, recipe.normalize, recipe.preprocess)


def measured_on(recipe: Recipe, data: str | Path | None, note: Callable[[str], None]) -> str | None:
    """The data to measure with; None, with a note, where the same floats calibrate what INT8 inputs take."""
    if data is None:
        return None
    if io_request(recipe).int8 and str(data) == recipe.calib:
        note("times are taken on random input, as the data is not quantised")
        return None
    return str(data)


def axis_length(text: str) -> int | None:
    """A length that an axis can have, 1 to 2³¹ - 1; None for any other text."""
    if not (text.isascii() and text.isdecimal()) or len(text) > _MAX_DIGITS:
        return None
    return int(text) if 1 <= int(text) <= MAX_AXIS else None


def recipe_json(recipe: Recipe) -> str:
    """As records hold it: the same text for equal recipes."""
    return msgspec.json.encode(recipe, order="deterministic").decode()


def batch_sizes(batch: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """One size or several, as several; NumPy's integers as Python's."""
    if batch is None:
        return None
    sizes = (batch,) if isinstance(batch, SupportsIndex) else batch
    # What is no whole number stays for the recipe's own check, which names the field.
    return tuple(operator.index(size) if isinstance(size, SupportsIndex) else size for size in sizes)


def parse_shape_flag(text: str) -> ShapeFlag:
    """`ids:Nx1,Nx128,Nx512` as the input's name and one or three shapes with `N` for the batch."""
    name, colon, rest = text.rpartition(":")
    shapes = rest.split(",")
    if not colon or not name or len(shapes) not in (1, 3):
        raise UsageError(
            f"--shape {text!r}: expected NAME:SHAPE or NAME:MIN,OPT,MAX",
            "write, say, --shape ids:Nx1,Nx128,Nx512",
        )
    return name, tuple(_parse_shape(text, shape) for shape in shapes)


def _parse_shape(flag: str, text: str) -> tuple[int | str, ...]:
    axes: list[int | str] = []
    for axis in text.strip().split("x"):
        if axis == BATCH:
            axes.append(BATCH)
        elif (length := axis_length(axis)) is not None:
            axes.append(length)
        else:
            raise UsageError(
                f"--shape {flag!r}: {axis!r} is not an axis length",
                f"axes are whole numbers from 1 on joined by 'x', with {BATCH} where the batch goes",
            )
    return tuple(axes)


# ── types and layouts ───────────────────────────────────────────────────────────────────────────────────

_LARGEST_FLOAT = 3.4028234e38

_NORMALIZE = re.compile(r"(?P<name>.+):(?P<rest>(mean|std)=[^:]*:(mean|std)=[^:]*)", re.DOTALL)

_IO_EXAMPLE = "write, say, --io image=uint8:nhwc"

_NORMALIZE_EXAMPLE = "write, say, --normalize image:mean=123.7,116.3,103.5:std=58.4,57.1,57.4"


def read_io_request(io: Mapping[str, str], normalize: Mapping[str, str], preprocess: str | None) -> IoRequest:
    """The request that a recipe's `io`, `normalize` and `preprocess` make."""
    if preprocess is not None and preprocess not in PREPROCESSING:
        raise UsageError(f"--preprocess {preprocess}: unknown", f"choose among {', '.join(PREPROCESSING)}")
    if preprocess is not None and normalize:
        raise UsageError(
            "--preprocess and --normalize would both normalise: an input is normalised once",
            "omit one of them",
        )
    formats = tuple(_read_format(name, text) for name, text in io.items())
    normalisations = tuple(_read_normalisation(name, text) for name, text in normalize.items())
    for one in normalisations:
        if any(given.name == one.name and given.dtype == "int8" for given in formats):
            raise UsageError(
                f"--normalize {one.name}: an INT8 input takes quantised values of what is normalised already",
                "normalise before trtopt.pack, or make the input uint8",
            )
    return IoRequest(formats=formats, normalisations=normalisations, preprocess=preprocess)


def split_io(text: str) -> tuple[str, str]:
    """`image=uint8:nhwc` as the tensor's name and the rest."""
    name, equals, rest = text.rpartition("=")
    if not equals or not name or not rest:
        raise UsageError(f"--io {text!r}: expected NAME=TYPE[:LAYOUT]", _IO_EXAMPLE)
    return name, rest


def split_normalize(text: str) -> tuple[str, str]:
    """`image:mean=…:std=…` as the input's name and the rest."""
    found = _NORMALIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"--normalize {text!r}: expected NAME:mean=…:std=…", _NORMALIZE_EXAMPLE)
    return found["name"], found["rest"]


def _read_format(name: str, text: str) -> TensorFormat:
    kind, _, layout = text.partition(":")
    if kind not in TYPES:
        raise UsageError(f"--io {name}={text}: unknown type {kind!r}", f"choose among {', '.join(TYPES)}")
    if layout and layout not in (*LINEAR, *VECTORS):
        raise UsageError(
            f"--io {name}={text}: unknown layout {layout!r}",
            f"choose among {', '.join((*LINEAR, *VECTORS))}",
        )
    return TensorFormat(name=name, dtype=TYPES[kind], layout=layout or "nchw")


def _read_normalisation(name: str, text: str) -> Normalisation:
    given = f"--normalize {name}:{text}"
    parts = [part.partition("=") for part in text.split(":")]
    if sorted(key for key, _, _ in parts) != ["mean", "std"]:
        raise UsageError(f"{given}: expected mean=… and std=…, each once", _NORMALIZE_EXAMPLE)
    try:
        found = {key: tuple(float(number) for number in numbers.split(",")) for key, _, numbers in parts}
    except ValueError:
        raise UsageError(f"{given}: not numbers separated by commas", _NORMALIZE_EXAMPLE) from None
    mean, std = found["mean"], found["std"]
    if len(mean) != len(std):
        raise UsageError(f"{given}: {len(mean)} means and {len(std)} deviations", "give one per channel")
    if not all(abs(one) <= _LARGEST_FLOAT for one in mean):
        raise UsageError(f"{given}: means must be finite in FP32", _NORMALIZE_EXAMPLE)
    if not all(1 / _LARGEST_FLOAT <= one <= _LARGEST_FLOAT for one in std):
        raise UsageError(f"{given}: deviations must be above 0 and finite in FP32", _NORMALIZE_EXAMPLE)
    return Normalisation(name=name, mean=mean, std=std)
