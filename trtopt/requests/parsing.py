"""How the command line writes values that are no plain text or number."""

from __future__ import annotations

import re

from trtopt.errors import UsageError
from trtopt.options import parse_names
from trtopt.recipe import MAX_AXIS, axis_length, parse_shape_flag

REFERENCE = "reference"
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse_batches(text: str) -> tuple[int, ...]:
    """`1,8,32` as numbers, sorted, without repeats."""
    return tuple(sorted(set(_sizes("--batch", text, "batch sizes"))))


def parse_rules(text: str) -> tuple[str, ...]:
    """`gelu,drop-unused` as names of rules; nothing is none."""
    return tuple(name for name in parse_names(text) if name)


def parse_range(text: str) -> tuple[int, ...]:
    """`1,1,4` as numbers, sorted; in a range a repeat marks the tuned size."""
    return tuple(sorted(_sizes("--batch", text, "batch sizes")))


def parse_streams(text: str) -> tuple[int, ...]:
    """`1,2,4` as numbers of streams, sorted, without repeats."""
    return tuple(sorted(set(_sizes("--streams", text, "numbers of streams"))))


def _sizes(flag: str, text: str, what: str) -> list[int]:
    found = [size for part in text.split(",") if (size := axis_length(part.strip())) is not None]
    if len(found) != text.count(",") + 1:
        option = flag if flag.endswith("=") else f"{flag} "
        raise UsageError(
            f"{option}{text!r}: {what} are whole numbers from 1 on, {MAX_AXIS:,} at most",
            f"write, say, {option}1,8,32",
        )
    return found


def parse_lengths_of_axis(text: str) -> tuple[str, tuple[int, ...]]:
    """`seq=32,64,128` as the axis' name and its lengths, in their order."""
    name, equals, lengths = text.rpartition("=")
    if not equals or not name:
        raise UsageError(
            f"--axis {text!r}: expected NAME=MIN,OPT,MAX or NAME=N", "write, say, --axis seq=1,128,512"
        )
    return name, tuple(_sizes(f"--axis {name}=", lengths, "lengths of an axis"))


def parse_axis(text: str) -> tuple[str, tuple[int, ...]]:
    """The same with one length, or a smallest, a tuned and a largest one."""
    name, lengths = parse_lengths_of_axis(text)
    if len(lengths) not in (1, 3) or list(lengths) != sorted(lengths):
        raise UsageError(
            f"--axis {text}: expected {name}=MIN,OPT,MAX or {name}=N",
            f"write, say, --axis {name}=1,128,512; several lengths are measured by trtopt sweep",
        )
    return name, lengths


def parse_shape(text: str) -> tuple[str, str]:
    """`ids:Nx1,Nx128,Nx512` as the input's name and its shapes, as a recipe has them."""
    name, _ = parse_shape_flag(text)
    return name, text[len(name) + 1 :]


def parse_share(flag: str, text: str) -> float:
    """`5%` or `0.05`; not `5`, which might be 5 % or five times."""
    number = text.strip().removesuffix("%").rstrip()
    is_percent = number != text.strip()
    try:
        share = float(number) / (100 if is_percent else 1)
    except ValueError:
        share = 0.0
    if not share > 0 or (share >= 1 and not is_percent):
        raise UsageError(f"{flag} {text}: not a share above 0", "write 5% or 0.05")
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


def parse_smoothing(text: str) -> float | str:
    """A number as such; names are validated with the rest of the request."""
    try:
        return float(text)
    except ValueError:
        return text


def parse_server(text: str) -> bool:
    """`triton` of `--for`."""
    if text != "triton":
        raise UsageError(f"--for {text}: no such server", "write --for triton")
    return True


def parse_bytes(text: str) -> int:
    """`8GiB` as bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB)", text.strip())
    if match is None:
        raise UsageError(f"--memory {text}: not a size", "give one as 8GiB, 512MiB or 64KiB")
    return int(float(match[1]) * _UNITS[match[2]])


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
