"""`trtopt tune`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from trtopt.cli.options.accuracy_bounds import bounds_options
from trtopt.cli.options.batch import batch_option
from trtopt.cli.options.completion import contract_names, names
from trtopt.cli.options.data import data_option
from trtopt.cli.options.io import IO_OPTIONS
from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.measuring import backend_choice
from trtopt.cli.options.model import OnnxFile
from trtopt.cli.options.output import output_option
from trtopt.cli.options.recipe import cache_dir_option, executor_options, recipe_option
from trtopt.cli.options.sections import SectionedCommand
from trtopt.cli.options.shapes import shape_options
from trtopt.precision.bounds import TUNING_BOUNDS, Bounds
from trtopt.records.tune import CandidateKind, Objective

_KINDS = get_args(CandidateKind)


def _kinds(flag: str, text: str) -> Callable[[Callable[..., Any]], Any]:
    return click.option(flag, multiple=True, type=click.Choice(_KINDS), metavar="KIND", help=text)


@click.command(cls=SectionedCommand)
@click.argument("model", type=OnnxFile(), required=False)
@output_option("FOLDER", "Build folder to create or, with --resume, to continue [default: MODEL.tuned].")
@batch_option(
    "Batch size to tune for; of several, --objective throughput chooses [default: the model's, or 1]."
)
@click.option(
    "--objective",
    type=click.Choice(get_args(Objective)),
    default="latency",
    show_default=True,
    help="What to improve.",
)
@click.option(
    "--rate",
    type=float,
    metavar="PER_S",
    help="With --objective p99: requests per second, arriving independently [default: one after another].",
)
@click.option(
    "--budget",
    metavar="TIME",
    default="30m",
    show_default=True,
    help="Time to spend, earlier runs of the folder included, as 90s, 30m or 1h30m.",
)
@_kinds("--include", f"Try only this kind of candidate, and others so named: {', '.join(_KINDS)}.")
@_kinds("--exclude", "Leave out this kind of candidate; may be given several times.")
@click.option("--resume", is_flag=True, help="Continue in a folder that an earlier run began.")
@data_option("Inputs to measure and check with, and to calibrate on [default: seeded random ones]")
@bounds_options(TUNING_BOUNDS.min_cosine)
@backend_choice("Backend to build and measure with [default: auto, the CPU if there is no GPU].")
@recipe_option("A shipped recipe or a TOML file that the baseline is built with.")
@shape_options
@IO_OPTIONS["io"]
@IO_OPTIONS["normalize"]
@IO_OPTIONS["preprocess"]
@click.option(
    "--contract",
    metavar="NAME",
    shell_complete=names(contract_names),
    help="The terms of the measurement [default: trtexec-11].",
)
@click.option(
    "--duration",
    type=float,
    default=2.0,
    show_default=True,
    metavar="S",
    help="Seconds of sampling per engine in a race.",
)
@click.option(
    "--threshold",
    metavar="SHARE",
    type=float,
    default=0.01,
    show_default=True,
    help="The smallest gain to accept, as a share.",
)
@click.option(
    "--timeout",
    type=float,
    metavar="S",
    help="Time limit for one build or measurement [default: ten times the baseline's, a minute at least].",
)
@executor_options
@cache_dir_option
@click.option(
    "--score", is_flag=True, help="Show how good predictions were on this machine, over all its ledgers."
)
@json_option("trtopt.tuned", "the result")
def tune(
    model: Path | None,
    output: Path | None,
    batch: tuple[int, ...] | None,
    objective: Objective,
    rate: float | None,
    budget: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    resume: bool,
    data: str | None,
    bounds: Bounds,
    backend: str | None,
    profile: str | None,
    axes: dict[str, tuple[int, ...]] | None,
    shapes: dict[str, str] | None,
    io: dict[str, str] | None,
    normalize: dict[str, str] | None,
    preprocess: str | None,
    contract: str | None,
    duration: float,
    threshold: float,
    timeout: float | None,
    executor: str | None,
    gpu_model: str | None,
    retries: int | None,
    cache_dir: Path | None,
    score: bool,
    json: JsonOutput | None,
) -> None:
    """Find a faster engine of MODEL, an ONNX file, within a budget of time.

    Tries candidates one by one, the highest expected gain per second first: precisions, for the graph or its
    regions; types of inputs and outputs; builder settings; rewrite rules; batch sizes, streams, the front of
    the graph on parts of the batch; further builds. Each is checked for
    accuracy and raced against the best so far. Deploy the folder: a build folder of the best engine.
    ledger.json in it lists every candidate with the predicted and the measured gain. Exits with 3 if the
    baseline misses the accuracy bound.
    """
    from trtopt.cli.console import say, show, show_notes
    from trtopt.cli.progress import listening
    from trtopt.recipe import make_recipe
    from trtopt.report.notes import Note, Severity
    from trtopt.report.tuning import score_summary, tuned_summary
    from trtopt.workflows.tune.setup import TuneRequest, default_folder
    from trtopt.workflows.tune.tune import score as scored, tune as run
    from trtopt.workflows.tune.tuned_folder import LEDGER

    if score:
        found = scored(backend or "auto", cache_dir)
        write_json(json, found)
        show(score_summary(found), err=takes_stdout(json))
        return
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    request = TuneRequest(
        recipe=make_recipe(
            profile,
            {
                "backend": backend,
                "axes": axes,
                "shapes": shapes,
                "io": io,
                "normalize": normalize,
                "preprocess": preprocess,
                "executor": executor,
                "gpu_model": gpu_model,
                "retries": retries,
            },
        ),
        batch=batch,
        objective=objective,
        rate=rate,
        data=data,
        bounds=bounds,
        budget=budget,
        include=include,
        exclude=exclude,
        resume=resume,
        contract=contract,
        duration=duration,
        threshold=threshold,
        timeout=timeout,
        cache_dir=cache_dir,
    )
    try:
        with listening() as listener:
            tuned = run(model, output, request, listener)
    except KeyboardInterrupt:
        if (output or default_folder(model)).joinpath(LEDGER).is_file():
            say("trtopt: run the same command with --resume to continue after the candidates tried", err=True)
        raise
    write_json(json, tuned)
    show(tuned_summary(tuned), err=takes_stdout(json))
    show_notes((Note(Severity.NOTE, text) for text in tuned.notes), err=takes_stdout(json))
