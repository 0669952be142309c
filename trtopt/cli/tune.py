"""`trtopt tune`."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.declared import command
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json
from trtopt.requests.build import TuneRequest


@command(TuneRequest, has_sections=True, optional=("model",))
@click.option(
    "--score", is_flag=True, help="Show how good predictions were on this machine, over all its ledgers."
)
@json_option("trtopt.tuned", "the result")
@click.pass_context
def tune(context: click.Context, request: TuneRequest | None, score: bool, json: JsonOutput | None) -> None:
    """Find a faster engine of MODEL, an ONNX file, within a budget of time.

    Tries candidates one by one, the highest expected gain per second first: precisions, for the graph or its
    regions; types of inputs and outputs; builder settings; rewrite rules; batch sizes, streams; further
    builds. Each is checked for accuracy and raced against the best so far. Deploy the folder: a build folder
    of the best engine. ledger.json in it lists every candidate with the predicted and the measured gain.
    Exits with 3 if the baseline misses the accuracy bound.
    """
    from trtopt.cli.console import say, show, show_view
    from trtopt.cli.progress import listening
    from trtopt.report.tuning import score_view, tuned_view
    from trtopt.workflows.tune.setup import default_folder
    from trtopt.workflows.tune.tune import score as scored, tune as run
    from trtopt.workflows.tune.tuned_folder import LEDGER

    if score:
        found = scored(context.params["backend"] or "auto", context.params["cache_dir"])
        write_json(json, found)
        show(score_view(found), err=takes_stdout(json))
        return
    if request is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    try:
        with listening() as listener:
            tuned = run(request, listener)
    except KeyboardInterrupt:
        if Path(request.output or default_folder(Path(request.model))).joinpath(LEDGER).is_file():
            say("trtopt: run the same command with --resume to continue after the candidates tried", err=True)
        raise
    write_json(json, tuned)
    show_view(tuned_view(tuned), err=takes_stdout(json))
