"""`trtopt optimize`."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.exit_codes import NOT_MET
from trtopt.cli.options.batch import batch_option
from trtopt.cli.options.measuring import duration_option
from trtopt.cli.options.model import OnnxFile

PAGE = "report.html"


@click.command()
@click.argument("model", type=OnnxFile())
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Build folder to create [default: MODEL.trtopt].",
)
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
@click.option(
    "--backend", default="auto", metavar="auto|tensorrt|tensorrt-rtx|onnxruntime", help="What to build with."
)
@duration_option
@click.option("--force", is_flag=True, help="Replace a build of another model.")
@click.pass_context
def optimize(
    context: click.Context,
    model: Path,
    output: Path | None,
    data: str | None,
    slo: str | None,
    min_cosine: float,
    batch: tuple[int, ...] | None,
    backend: str,
    duration: float,
    force: bool,
) -> None:
    """Find the fastest engine of MODEL, an ONNX file, that meets a latency and an accuracy bound.

    Lints and rewrites the model, builds engines, measures them, compares their outputs with those of MODEL
    and writes report.html into the build folder. With --data the precision is chosen too, where engines can
    be measured. Exits with 3 if a bound is missed.
    """
    from trtopt.cli.console import console
    from trtopt.cli.progress import listening
    from trtopt.report.optimizing import optimized_summary
    from trtopt.workflows.optimize import optimize as run

    with listening() as listener:
        found = run(
            model,
            output,
            data=data,
            slo=slo,
            min_cosine=min_cosine,
            batch=batch,
            backend=backend,
            duration=duration,
            force=force,
            listener=listener,
        )
    console().print(optimized_summary(found))
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
