"""Headings in the help of commands with many options: one table says under which heading an option stands."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter

import click

from trtopt.builder_settings import SETTINGS
from trtopt.targets import ONNXRUNTIME

FIRST = "Options"
SECTIONS: dict[str, tuple[str, ...]] = {
    FIRST: (),
    "Candidates": ("--include KIND", "--exclude KIND"),
    "Precision": (
        *("--precision", "--target", "--method", "--table", "--exclude", "--include", "--smoothquant"),
        *("--forms", "--selection-budget", "--store-weights", "--random-data", "--verdict"),
        "--allow-fallback",
    ),
    "Accuracy bounds": ("--min-cosine", "--min-sqnr", "--max-error", "--min-top1"),
    "Graph": ("--rewrite", "--add-rule", "--io", "--normalize", "--preprocess"),
    "Measurement": (
        *("--contract", "--duration", "--stop-early", "--warmup", "--timeout", "--cpu-affinity"),
        "--lock-clocks",
    ),
    "Terms of the measurement [default: the contract's]": (
        *("--graph", "--transfers", "--pinned", "--queue", "--sync", "--threads", "--streams"),
    ),
    "Further measurements, each in a pass of its own": (
        *("--layers", "--kernels", "--memory", "--load", "--max-latency", "--idle", "--cold-start"),
        "--probe-peaks",
    ),
    "Builder settings [default: the backend's]": (
        "--recipe",
        *(str(one.flag) for one in SETTINGS if one.backends != (ONNXRUNTIME,)),
        *("--timing-cache", "--cache-dir", "--build-timeout"),
    ),
    "Settings of ONNX Runtime [default: its own]": (
        *(str(one.flag) for one in SETTINGS if one.backends == (ONNXRUNTIME,)),
    ),
    "Where jobs run": ("--jobs", "--executor", "--gpu-model", "--retries"),
    "For other tools": ("--nvtx", "--cuda-profiler", "--trace", "--export-times", "--export-profile"),
    "Output": ("--json", "--markdown", "--strict", "--verbose", "--quiet", "--log-file", "--help"),
}
"""In the order of the help, options too; one that is listed nowhere stands under the first. A flag that means
something else in another command is listed with its metavar."""


class SectionedCommand(click.Command):
    """A command whose help lists its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command.format_options`."""
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        sizes = Counter(map(section_of, options))
        rows: dict[str, list[tuple[int, tuple[str, str]]]] = {title: [] for title in SECTIONS}
        for option in options:
            row, title = option.get_help_record(ctx), section_of(option)
            if row is not None and sizes[title] > 1:
                rows[title].append((_place(option, title), row))
            elif row is not None:  # one option needs no heading
                rows[FIRST].append((0, row))
        for title, listed in rows.items():
            if listed:
                with formatter.section(title):
                    formatter.write_dl([row for _, row in sorted(listed, key=itemgetter(0))])


def _place(option: click.Parameter, title: str) -> int:
    """Where an option stands under its heading; under the first they keep the command's own order."""
    names = names_of(option)
    return next((place for place, flag in enumerate(SECTIONS[title]) if flag in names), 0)


def section_of(option: click.Parameter) -> str:
    """The heading of an option."""
    names = names_of(option)
    return next((title for title, flags in SECTIONS.items() if names & set(flags)), FIRST)


def names_of(option: click.Parameter) -> set[str]:
    """How the table may name an option: by its flags, or these with its metavar."""
    return {*option.opts, *(f"{flag} {option.metavar}" for flag in option.opts)}
