"""`trtopt bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.contract_flags import contract_flags

if TYPE_CHECKING:
    from trtopt.records import BenchReport, Terms


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--batch", metavar="N,N,…", help="Batch sizes [default: all that there are engines for].")
@click.option(
    "--backend",
    metavar="auto|tensorrt|tensorrt-rtx|onnxruntime",
    help="What to run with [default: what the engines were built with; auto: the CPU where no GPU is].",
)
@contract_flags
@click.option(
    "--duration", type=float, default=3.0, show_default=True, metavar="S", help="Seconds of sampling a pass."
)
@click.option(
    "--warmup", type=float, default=0.2, show_default=True, metavar="S", help="Seconds before samples count."
)
@click.option(
    "--input", "data", metavar="DATA", help="An .npz, a folder of them, Polygraphy's JSON or module:function."
)
@click.option("--layers", is_flag=True, help="Time every layer, in a pass of its own.")
@click.option("--memory", is_flag=True, help="Follow every allocation, in a pass of its own.")
@click.option("--json", "json_file", metavar="FILE|-", help="Write the result file, raw samples included.")
@click.option(
    "--export-times",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write latency samples as trtexec --exportTimes does; several batch sizes: FILE.batchN each.",
)
@click.option(
    "--export-profile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write layer times as trtexec --exportProfile does; turns on --layers.",
)
def bench(
    path: Path,
    batch: str | None,
    backend: str | None,
    contract: str | None,
    terms: Terms,
    duration: float,
    warmup: float,
    data: str | None,
    layers: bool,
    memory: bool,
    json_file: str | None,
    export_times: Path | None,
    export_profile: Path | None,
) -> None:
    """Measure PATH: a build folder, one engine of it, or an ONNX file.

    Latency is measured with one query in flight, throughput with the contract's queue; each in a pass of its
    own. With `--json -` the result goes to standard output and the table to standard error.
    """
    from rich.console import Console

    from trtopt.cli.progress import listening
    from trtopt.pipeline.bench import bench as run
    from trtopt.recipe import parse_batches
    from trtopt.records import to_json
    from trtopt.report.text import bench_summary
    from trtopt.workspace import check_writable, write_atomically

    file = Path(json_file) if json_file and json_file != "-" else None
    for output in (file, export_times, export_profile):
        if output is not None:
            check_writable(output)

    def save(report: BenchReport) -> None:
        """After every engine: a later failure must not take finished measurements along."""
        if file is not None:
            write_atomically(file, to_json(report, indent=None))

    with listening(save) as listener:
        report = run(
            path,
            batch=parse_batches(batch) if batch is not None else None,
            backend=backend,
            contract=contract,
            terms=terms,
            duration=duration,
            warmup=warmup,
            data=data,
            layers=layers or export_profile is not None,
            memory=memory,
            listener=listener,
        )
    _export(report, export_times, export_profile)
    if json_file == "-":
        click.echo(to_json(report, indent=None), nl=False)
    Console(stderr=json_file == "-").print(bench_summary(report))


def _export(report: BenchReport, times: Path | None, profile: Path | None) -> None:
    """trtexec's files, one a batch size."""
    from trtopt.report import trtexec
    from trtopt.workspace import write_atomically

    for point in report.points:
        if times is not None:
            file = trtexec.path_for(times, point.batch, len(report.points))
            write_atomically(file, trtexec.times(point.latency.samples))
        if profile is not None and point.layers is not None:
            file = trtexec.path_for(profile, point.batch, len(report.points))
            write_atomically(file, trtexec.profile(point.layers))
