"""`trtopt profile`."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.options.measuring import backend_option, nvtx_option, timeout_option, trust_option


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write profile.json into.")
@click.option("--batch", metavar="N,N,…", help="Batch sizes [default: those of the engines].")
@backend_option
@click.option(
    "--result",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Use a result file of `trtopt bench --layers` instead of measuring here.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="PROFILE",
    help="An earlier profile (file or folder): show the differences, layer by layer.",
)
@click.option(
    "--trace", "with_trace", is_flag=True, help="Write trace.json for Perfetto next to profile.json."
)
@click.option("--memory", is_flag=True, help="Follow every allocation too, in a pass of its own.")
@timeout_option
@trust_option
@nvtx_option
@click.option(
    "--probe-peaks",
    is_flag=True,
    help="Measure the device's peak rates, for floors; stored for later profiles.",
)
@click.option(
    "--duration",
    type=float,
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds of the latency pass that accompanies the layer pass.",
)
def profile(
    path: Path,
    output: Path | None,
    batch: str | None,
    backend: str | None,
    result: Path | None,
    against: Path | None,
    with_trace: bool,
    memory: bool,
    timeout: float | None,
    trust: tuple[str, ...],
    nvtx: bool,
    probe_peaks: bool,
    duration: float,
) -> None:
    """Profile PATH: a build folder, one engine of it, or an ONNX file.

    Shows where the time goes, layer by layer, with the names of the ONNX file; which types ran; what fused,
    what did not and why; and how far each layer is from the device's limits.
    """
    from trtopt.cli.console import is_verbose, note, show, show_notes
    from trtopt.cli.progress import listening
    from trtopt.errors import UsageError
    from trtopt.files.atomic import write_atomically
    from trtopt.files.writable import check_writable
    from trtopt.recipe import parse_batches
    from trtopt.records import to_json
    from trtopt.report.profile import profile_notes, profile_summary
    from trtopt.report.trace import trace
    from trtopt.workflows.profile.profile import PROFILE_FILE, TRACE_FILE
    from trtopt.workflows.profile.profile import profile as run

    if with_trace and output is None:
        raise UsageError("--trace: no folder to write trace.json into", "name one with -o")
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
            memory=memory,
            nvtx=nvtx,
            probe=probe_peaks,
            duration=duration,
            listener=listener,
            timeout=timeout,
            trust=trust,
        )
    if file is not None:
        write_atomically(file, to_json(report, indent=None))
    show(profile_summary(report, verbose=is_verbose()))
    show_notes(profile_notes(report))
    if file is not None and with_trace:
        if any(layer.ms for engine in report.engines for layer in engine.layers):
            write_atomically(file.with_name(TRACE_FILE), trace(report))
        else:
            note(f"no {TRACE_FILE}: nothing was timed")
