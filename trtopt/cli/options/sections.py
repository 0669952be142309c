"""Headings in the help of commands with many options: one table says under which heading an option stands."""

from __future__ import annotations

from collections import Counter

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
    "Graph": ("--rewrite", "--add-rule", "--io", "--normalize", "--preprocess", "--split"),
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
        *(one.flag for one in SETTINGS if one.backends != (ONNXRUNTIME,)),
        *("--timing-cache", "--cache-dir", "--build-timeout"),
    ),
    "Settings of ONNX Runtime [default: its own]": (
        *(one.flag for one in SETTINGS if one.backends == (ONNXRUNTIME,)),
    ),
    "Where jobs run": ("--jobs", "--executor", "--gpu-model", "--retries"),
    "For other tools": ("--nvtx", "--cuda-profiler", "--trace", "--export-times", "--export-profile"),
    "Output": ("--json", "--markdown", "--strict", "--verbose", "--quiet", "--log-file", "--help"),
}
"""In the order of the help; an option that is listed nowhere stands under the first. A flag that means
something else in another command is listed with its metavar."""


class SectionedCommand(click.Command):
    """A command whose help lists its options under headings, in the command's own order."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command.format_options`."""
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        sizes = Counter(map(section_of, options))
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for option in options:
            row, title = option.get_help_record(ctx), section_of(option)
            if row is not None:
                rows[title if sizes[title] > 1 else FIRST].append(row)  # one option needs no heading
        for title, listed in rows.items():
            if listed:
                with formatter.section(title):
                    formatter.write_dl(listed)


def section_of(option: click.Parameter) -> str:
    """The heading of an option."""
    names = names_of(option)
    return next((title for title, flags in SECTIONS.items() if names & set(flags)), FIRST)


def names_of(option: click.Parameter) -> set[str]:
    """How the table may name an option: by its flags, or these with its metavar."""
    return {*option.opts, *(f"{flag} {option.metavar}" for flag in option.opts)}
