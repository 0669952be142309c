"""`--shape` and `--axis`: sizes of inputs with dynamic axes besides the batch."""

from __future__ import annotations

from collections.abc import Callable

import click


def shape_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add both. The command gets `shapes` and `axes`, by name as a recipe has them; None if not given."""
    for option in (axis_option, shape_option):
        command = option(command)
    return command


def parse_axis_flag(text: str) -> tuple[str, tuple[int, ...]]:
    """`seq=32,64,128` as the axis' name and its lengths, in their order.

    Raises:
        UsageError: not of that form.
    """
    from trtopt.cli.options.batch import sizes
    from trtopt.errors import UsageError

    name, equals, lengths = text.rpartition("=")
    if not equals or not name:
        raise UsageError(
            f"--axis {text!r}: expected NAME=MIN,OPT,MAX or NAME=N", "write, say, --axis seq=1,128,512"
        )
    return name, tuple(sizes(f"--axis {name}=", lengths, "lengths of an axis"))


def axes_by_name(flags: tuple[str, ...]) -> dict[str, tuple[int, ...]] | None:
    """`NAME=N,…` flags by the axis' name; None if there are none.

    Raises:
        UsageError: a malformed flag, or an axis given twice.
    """
    from trtopt.errors import UsageError

    axes: dict[str, tuple[int, ...]] = {}
    for name, lengths in map(parse_axis_flag, flags):
        if name in axes:
            raise UsageError(f"--axis {name}: given twice", "give each axis one --axis")
        axes[name] = lengths
    return axes or None


def _ranges_by_name(flags: tuple[str, ...]) -> dict[str, tuple[int, ...]] | None:
    """The same, each one length or a smallest, a tuned and a largest one.

    Raises:
        UsageError: another number of lengths, or not in this order.
    """
    from trtopt.errors import UsageError

    axes = axes_by_name(flags)
    for name, lengths in (axes or {}).items():
        if len(lengths) not in (1, 3) or list(lengths) != sorted(lengths):
            raise UsageError(
                f"--axis {name}={','.join(map(str, lengths))}: expected {name}=MIN,OPT,MAX or {name}=N",
                f"write, say, --axis {name}=1,128,512; several lengths are measured by trtopt sweep",
            )
    return axes


def _shapes_by_name(flags: tuple[str, ...]) -> dict[str, str] | None:
    """`NAME:SHAPES` flags as a recipe stores them, which validates each.

    Raises:
        UsageError: a malformed flag, or an input given twice.
    """
    from trtopt.errors import UsageError
    from trtopt.recipe import parse_shape_flag

    by_name: dict[str, str] = {}
    for flag in flags:
        name, _ = parse_shape_flag(flag)
        if name in by_name:
            raise UsageError(f"--shape {name}: given twice", "give each input one --shape")
        by_name[name] = flag[len(name) + 1 :]
    return by_name or None


shape_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    callback=lambda context, option, flags: _shapes_by_name(flags),
    metavar="INPUT:MIN,OPT,MAX",
    help="Shapes of an input with dynamic axes besides the batch: ids:Nx1,Nx128,Nx512 (N is the batch).",
)
axis_option = click.option(
    "--axis",
    "axes",
    multiple=True,
    callback=lambda context, option, flags: _ranges_by_name(flags),
    metavar="NAME=MIN,OPT,MAX",
    help="Lengths of a dynamic axis by its name in the model, for all inputs: seq=1,128,512 or seq=128.",
)
