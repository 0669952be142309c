"""`trtopt profile`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write profile.json into.")
@click.option("--batch", metavar="N,N,…", help="Batch sizes [default: all that there are engines for].")
@click.option(
    "--backend",
    metavar="auto|tensorrt|tensorrt-rtx|onnxruntime",
    help="What to run with [default: what the engines were built with; auto: the CPU where no GPU is].",
)
@click.option(
    "--result",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Look into a result file of `trtopt bench --layers` instead of measuring here.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="PROFILE",
    help="An earlier profile (file or folder): tell the difference, layer by layer.",
)
@click.option(
    "--duration",
    type=float,
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds of the latency pass beside the layer pass.",
)
def profile(
    path: Path,
    output: Path | None,
    batch: str | None,
    backend: str | None,
    result: Path | None,
    against: Path | None,
    duration: float,
) -> None:
    """Look inside PATH: a build folder, one engine of it, or an ONNX file.

    Tells where the time goes, layer by layer, under the names of the ONNX file; which types ran, what fused
    and what did not and why, and how far each layer is from what the device could do.
    """
    from rich.console import Console

    from trtopt.cli.progress import listening
    from trtopt.pipeline.profile import PROFILE_FILE
    from trtopt.pipeline.profile import profile as run
    from trtopt.recipe import parse_batches
    from trtopt.records import to_json
    from trtopt.report.profile import profile_summary
    from trtopt.workspace import check_writable, write_atomically

    file = output / PROFILE_FILE if output is not None else None
    if file is not None:
        check_writable(file)
    with listening() as listener:
        report = run(
            path,
            batch=parse_batches(batch) if batch is not None else None,
            backend=backend,
            result=result,
            against=against,
            duration=duration,
            listener=listener,
        )
    if file is not None:
        write_atomically(file, to_json(report, indent=None))
    Console().print(profile_summary(report))
