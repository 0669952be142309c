"""`trtopt bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.bench_outputs import Outputs, output_flags
from trtopt.cli.exit_codes import UNTRUSTWORTHY
from trtopt.cli.options.batch import batch_option
from trtopt.cli.options.contract import contract_flags
from trtopt.cli.options.measuring import (
    backend_option,
    duration_option,
    inputs_option,
    nvtx_option,
    timeout_option,
    trust_option,
    warmup_option,
)
from trtopt.cli.options.sections import SectionedCommand
from trtopt.cli.options.shapes import shape_options

if TYPE_CHECKING:
    from trtopt.records import Terms

REFERENCE = "reference"


@click.command(cls=SectionedCommand)
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@batch_option("Batch sizes [default: those of the engines].")
@shape_options
@backend_option
@contract_flags
@duration_option
@click.option(
    "--stop-early", is_flag=True, help="End a pass sooner if it is steady, after 3 s at the earliest."
)
@warmup_option
@inputs_option
@click.option("--layers", is_flag=True, help="Time every layer, in a separate pass.")
@click.option("--memory", is_flag=True, help="Trace every allocation, in a separate pass.")
@click.option(
    "--load",
    metavar="[poisson:]RATE",
    help="Send requests at RATE per second, evenly or as a Poisson process, in a separate pass.",
)
@click.option(
    "--max-latency",
    metavar="pN=LIMIT",
    help="Find the highest request rate that meets this latency, as p99=5ms; --load poisson (default), "
    "constant or a first rate set how requests arrive.",
)
@click.option(
    "--idle", metavar="1,10,100ms", help="Measure the latency after such pauses, in a pass of its own."
)
@click.option(
    "--cold-start", is_flag=True, help="Start each engine in fresh processes too, and time every phase."
)
@click.option(
    "--cpu-affinity",
    metavar="auto|LIST",
    help="Keep host threads on the cores near the GPU, or on 0-3,8.",
)
@click.option(
    "--lock-clocks",
    is_flag=False,
    flag_value=REFERENCE,
    metavar="[MHZ]",
    help="Lock the GPU's clocks while measuring, at MHZ or at their reference; restored on any exit.",
)
@timeout_option
@trust_option
@nvtx_option
@click.option(
    "--cuda-profiler",
    is_flag=True,
    help="Let nsys profile --capture-range=cudaProfilerApi capture the measured part only.",
)
@click.option("--strict", is_flag=True, help="Exit with 4 if a figure is not trustworthy, or unsteady.")
@output_flags
@click.pass_context
def bench(
    context: click.Context,
    path: Path,
    batch: tuple[int, ...] | None,
    shapes: dict[str, str] | None,
    axes: dict[str, tuple[int, ...]] | None,
    backend: str | None,
    contract: str | None,
    terms: Terms,
    duration: float,
    stop_early: bool,
    warmup: float,
    data: str | None,
    layers: bool,
    memory: bool,
    load: str | None,
    max_latency: str | None,
    idle: str | None,
    cold_start: bool,
    cpu_affinity: str | None,
    lock_clocks: str | None,
    timeout: float | None,
    trust: tuple[str, ...],
    nvtx: bool,
    cuda_profiler: bool,
    strict: bool,
    outputs: Outputs,
) -> None:
    """Measure PATH: a build folder, one engine of it, or an ONNX file.

    With `--json -` the table goes to standard error. If an engine fails, earlier measurements are kept.
    """
    from trtopt.cli.progress import listening
    from trtopt.errors import TrtoptError
    from trtopt.report.trust import is_trustworthy
    from trtopt.workflows.bench.bench import bench as run
    from trtopt.workflows.bench.request import BenchRequest

    request = BenchRequest(
        batch=batch,
        shapes=shapes,
        axes=axes,
        backend=backend,
        contract=contract,
        terms=terms,
        duration=duration,
        stop_early=stop_early,
        warmup=warmup,
        data=data,
        layers=layers or outputs.need_layers,
        memory=memory,
        load=load,
        max_latency=max_latency,
        idle=idle,
        cold_start=cold_start,
        cpu_affinity=cpu_affinity,
        lock_clocks=_clock(lock_clocks),
        nvtx=nvtx,
        cuda_profiler=cuda_profiler,
        timeout=timeout,
        trust=trust,
    )
    try:
        with listening(outputs.save) as listener:
            report = run(path, request, listener)
    except TrtoptError:
        outputs.finish(path.name)
        raise
    outputs.finish(path.name)
    if strict and not is_trustworthy(report):
        context.exit(UNTRUSTWORTHY)


def _clock(text: str | None) -> int | bool:
    from trtopt.errors import UsageError

    if text is None or text == REFERENCE:
        return text is not None
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(
            f"--lock-clocks {text!r}: not a clock in MHz", "write --lock-clocks 1500, or put the flag last"
        )
    return int(text)
