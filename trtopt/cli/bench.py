"""`trtopt bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.bench_outputs import Outputs, output_flags
from trtopt.cli.contract_flags import contract_flags

if TYPE_CHECKING:
    from trtopt.records import Terms


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
@click.option(
    "--load",
    metavar="[poisson:]RATE",
    help="Let requests arrive at RATE a second, evenly or as a Poisson process, in a pass of its own.",
)
@click.option(
    "--max-latency",
    metavar="pN=LIMIT",
    help="Find the highest rate of requests that keeps it, as p99=5ms; --load poisson (default), constant "
    "or a first rate say how requests arrive.",
)
@click.option(
    "--cpu-affinity",
    metavar="auto|LIST",
    help="Keep host threads on the cores near the GPU, or on 0-3,8.",
)
@output_flags
@click.pass_context
def bench(
    context: click.Context,
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
    load: str | None,
    max_latency: str | None,
    cpu_affinity: str | None,
    outputs: Outputs,
) -> None:
    """Measure PATH: a build folder, one engine of it, or an ONNX file.

    Latency is measured with one query in flight, throughput with the contract's queue; each in a pass of its
    own. With `--json -` the result goes to standard output and the table to standard error.
    """
    from trtopt.cli.progress import listening
    from trtopt.pipeline.bench import bench as run
    from trtopt.recipe import parse_batches

    with listening(outputs.save) as listener:
        report = run(
            path,
            batch=parse_batches(batch) if batch is not None else None,
            backend=backend,
            contract=contract,
            terms=terms,
            duration=duration,
            warmup=warmup,
            data=data,
            layers=layers or outputs.need_layers,
            memory=memory,
            load=load,
            max_latency=max_latency,
            cpu_affinity=cpu_affinity,
            listener=listener,
        )
    outputs.finish(report)
    loads = [each for point in report.points for each in (point.load, point.load_search) if each is not None]
    if any(load.failure is not None for load in loads):
        context.exit(1)
