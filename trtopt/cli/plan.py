"""`trtopt plan`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from trtopt.cli.options.completion import files, names_or_files
from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.output import json_file, output_option

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@click.command()
@click.argument(
    "sources", metavar="SWEEP...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@output_option("FILE", "Plan file to write.", json_file("trtopt.plan"), required=True)
@click.option("--slo", required=True, metavar="pN=LIMIT", help="The latency goal, as p99=10ms.")
@click.option(
    "--rate", type=float, metavar="N", help="Requests per second [default: the highest sustainable rate]."
)
@click.option(
    "--arrivals",
    default="poisson",
    show_default=True,
    metavar="HOW|FILE",
    shell_complete=names_or_files(lambda: ("poisson", "constant", "bursty")),
    help="poisson, constant, bursty[:PEAK:SECONDS], or a file with one time in seconds per line.",
)
@click.option(
    "--lengths", metavar="N:SHARE,…", help="Lengths of requests with their shares, as 128:0.7,384:0.3."
)
@click.option("--memory", metavar="SIZE", help="Limit of device memory, as 8GiB.")
@click.option(
    "--max-engines",
    type=int,
    default=3,
    show_default=True,
    metavar="N",
    help="Maximum number of engines to combine.",
)
@click.option(
    "--for", "purpose", type=click.Choice(["triton"]), help="Only setups that Triton's batcher supports."
)
@click.option(
    "--timeout",
    type=float,
    metavar="S",
    help="Seconds that each measurement may take, also of --verify [default: no limit].",
)
@click.option(
    "--trust",
    multiple=True,
    metavar="LIB.so",
    shell_complete=files,
    help="Load this plugin, which engines need: native code.",
)
@click.option(
    "--verify", is_flag=True, help="Run the plan under its load, and show prediction and measurement."
)
@json_option("trtopt.plan", "the plan")
def plan(
    sources: tuple[Path, ...],
    output: Path,
    slo: str,
    rate: float | None,
    arrivals: str,
    lengths: str | None,
    memory: str | None,
    max_engines: int,
    purpose: str | None,
    timeout: float | None,
    trust: tuple[str, ...],
    verify: bool,
    json: JsonOutput | None,
) -> None:
    """Choose engines, workers, batch sizes and a delay for a latency under a load, by simulation.

    SWEEP is a folder of `trtopt sweep`, or a build folder with results of `trtopt bench --json` in it;
    with several folders, the engines of all are candidates. `trtopt.serving.EnginePool.open` loads the plan.
    """
    from trtopt.cli.console import is_verbose, show, show_notes
    from trtopt.cli.progress import phases
    from trtopt.report.notes import plain
    from trtopt.report.planning import plan_text
    from trtopt.workflows.plan.plan import plan as make
    from trtopt.workflows.plan.request import PlanRequest
    from trtopt.workflows.plan.trial_runs import verify as put_to_the_test

    request = PlanRequest(
        slo=slo,
        rate=rate,
        arrivals=arrivals,
        lengths=_lengths(lengths) if lengths is not None else {},
        memory_bytes=_bytes(memory) if memory is not None else None,
        max_engines=max_engines,
        for_triton=purpose == "triton",
        timeout=timeout,
        trust=trust,
    )
    with phases("planning") as enter:
        made = make(sources, output, request, enter)
        if verify:
            made = put_to_the_test(output, timeout, enter, trust)
    write_json(json, made)
    show(plan_text(made, verbose=is_verbose()), err=takes_stdout(json))
    show_notes(plain(made.notes), err=takes_stdout(json))


def _bytes(text: str) -> int:
    from trtopt.errors import UsageError

    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB)", text.strip())
    if match is None:
        raise UsageError(f"--memory {text}: not a size", "give one as 8GiB, 512MiB or 64KiB")
    return int(float(match[1]) * _UNITS[match[2]])


def _lengths(text: str) -> dict[int, float]:
    from trtopt.errors import UsageError

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
