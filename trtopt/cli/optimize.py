"""`trtopt optimize`."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.exit_codes import NOT_MET
from trtopt.cli.options.batch import batch_option
from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.measuring import duration_option
from trtopt.cli.options.model import OnnxFile
from trtopt.cli.options.output import output_option
from trtopt.cli.options.shapes import shape_options

PAGE = "report.html"


@click.command()
@click.argument("model", type=OnnxFile())
@output_option("FOLDER", "Build folder to create [default: MODEL.trtopt].")
@click.option("--data", metavar="DATA", help="Samples: an .npz, a folder of them or module:function.")
@click.option("--slo", metavar="pN=LIMIT", help="Latency bound, as p99=10ms.")
@click.option(
    "--min-cosine",
    type=click.FloatRange(-1, 1),
    metavar="VALUE",
    default=0.99,
    show_default=True,
    help="Minimum cosine of every output against MODEL.",
)
@batch_option("Batch sizes, one engine each [default: 1,8,32].")
@shape_options
@click.option(
    "--backend", default="auto", metavar="auto|tensorrt|tensorrt-rtx|onnxruntime", help="What to build with."
)
@duration_option
@click.option("--force", is_flag=True, help="Replace a build of another model.")
@json_option("trtopt.optimize", "the result")
@click.pass_context
def optimize(
    context: click.Context,
    model: Path,
    output: Path | None,
    data: str | None,
    slo: str | None,
    min_cosine: float,
    batch: tuple[int, ...] | None,
    shapes: dict[str, str] | None,
    axes: dict[str, tuple[int, ...]] | None,
    backend: str,
    duration: float,
    force: bool,
    json: JsonOutput | None,
) -> None:
    """Find the fastest engine of MODEL, an ONNX file, that meets a latency and an accuracy bound.

    Lints and rewrites the model, builds engines, measures them, compares their outputs with those of MODEL
    and writes report.html into the build folder. With --data the precision is chosen too, where engines can
    be measured. Exits with 3 if a bound is missed.
    """
    from trtopt.cli.console import show, show_notes, warn
    from trtopt.cli.progress import listening
    from trtopt.report.optimizing import optimized_notes, optimized_summary
    from trtopt.workflows.optimize import optimize as run

    with listening() as listener:
        found = run(
            model,
            output,
            data=data,
            slo=slo,
            min_cosine=min_cosine,
            batch=batch,
            shapes=shapes,
            axes=axes,
            backend=backend,
            duration=duration,
            force=force,
            listener=listener,
        )
    warn(found.alarms)
    write_json(json, found)
    show(optimized_summary(found), err=takes_stdout(json))
    show_notes(optimized_notes(found), err=takes_stdout(json))
    write_report(Path(found.folder))
    if not found.met:
        context.exit(NOT_MET)


def write_report(folder: Path) -> None:
    """The report of a folder, or one line that says what is missing for it."""
    from trtopt.cli.console import say
    from trtopt.cli.report import write_build_page
    from trtopt.errors import BackendMissingError

    try:
        write_build_page(folder, folder / PAGE)
    except BackendMissingError as error:
        say(f"trtopt: no report page: {error.problem}; {error.remedy}", err=True)
