"""`trtopt compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.exit_codes import NOT_MET, NOT_SHOWN
from trtopt.cli.options.batch import batch_option
from trtopt.cli.options.completion import contract_names, names
from trtopt.cli.options.contract import contract_flags
from trtopt.cli.options.data import data_option, older_data_option
from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.measuring import backend_option, timeout_option, trust_option
from trtopt.cli.options.recipe import RecipeFlags, recipe_options
from trtopt.cli.options.sections import SectionedCommand
from trtopt.cli.options.share import share_option

if TYPE_CHECKING:
    from trtopt.measure.analysis.outcomes import Outcome
    from trtopt.records import Terms


@click.command(cls=SectionedCommand)
@click.argument("a", type=click.Path(exists=True, path_type=Path))
@click.argument("b", type=click.Path(exists=True, path_type=Path), required=False)
@share_option("--threshold", default="1%", text="The smallest difference that matters.")
@share_option(
    "--fail-on",
    text="Exit with 5 unless a slowdown of so much is ruled out [default: 5% between result files, 2% in "
    "turns].",
)
@click.option("--markdown", is_flag=True, help="Print Markdown tables, for a pull request.")
@json_option("trtopt.compare", "the comparison, raw samples included,")
@click.option(
    "--force", is_flag=True, help="Compare although machines, models, input shapes or outputs differ."
)
@batch_option("Batch sizes [default: those of both sides].")
@backend_option
@contract_flags
@click.option(
    "--duration",
    type=float,
    metavar="S",
    help="Seconds of sampling for each of A and B per batch size [default: 3.0].",
)
@data_option("Inputs to measure with, and for the --precision of --builds [default: seeded random ones]")
@older_data_option("--input")
@older_data_option("--calib")
@timeout_option
@trust_option
@click.option("--control", type=int, metavar="K", help="Measure A against itself K times.")
@click.option("--builds", type=int, metavar="K", help="Build each model K times: compare recipes.")
@click.option(
    "--across-contracts",
    is_flag=False,
    flag_value="",
    metavar="[C1,C2]",
    help="Explain the difference of two contracts; between result files without a value, as last option.",
)
@click.option(
    "--assume-contract",
    metavar="NAME",
    shell_complete=names(contract_names),
    help="The contract that trtexec's exported times were taken under.",
)
@recipe_options("jobs", "timing_cache", "reproducible", "split")
def compare(
    a: Path,
    b: Path | None,
    threshold: float,
    fail_on: float | None,
    markdown: bool,
    json: JsonOutput | None,
    force: bool,
    batch: tuple[int, ...] | None,
    backend: str | None,
    contract: str | None,
    terms: Terms,
    duration: float | None,
    data: str | None,
    input: str | None,
    calib: str | None,
    timeout: float | None,
    trust: tuple[str, ...],
    control: int | None,
    builds: int | None,
    across_contracts: str | None,
    assume_contract: str | None,
    recipe: RecipeFlags,
) -> None:
    """Compare B with the baseline A, batch by batch.

    A and B are result files of `trtopt bench` or trtexec, or build folders or engines, which take turns in
    one process. With --builds K they may be ONNX files, each built K times.

    Verdicts on latency: FASTER, SLOWER, SAME or UNDECIDED, each with its reasons. Exits with 3 if B is slower
    at any batch size, and with 5 if B is not shown to be within --fail-on of A, so that it can gate a CI.
    --control needs no B, nor does --across-contracts with two contracts, nor --builds, which then compares
    the builds of one model.
    """
    from trtopt.cli.console import is_verbose, show, show_notes
    from trtopt.cli.progress import listening
    from trtopt.errors import DeviceError
    from trtopt.report.comparison import comparison_markdown, comparison_notes, comparison_summary
    from trtopt.workflows.compare.compare import CompareRequest, compare as run

    request = CompareRequest(
        threshold=threshold,
        fail_on=fail_on,
        force=force,
        batch=batch,
        backend=backend,
        contract=contract,
        terms=terms,
        duration=duration,
        data=input or data,
        timeout=timeout,
        trust=trust,
        control=control,
        builds=builds,
        across_contracts=across_contracts,
        assume_contract=assume_contract,
        recipe=recipe.recipe({"calib": calib})
        if calib is not None
        else recipe.calibrated_on(data if builds is not None else None),
    )
    with listening() as listener:
        compared = run(a, b, request, listener)
    write_json(json, compared.report, indent=None)
    if markdown:
        click.echo(comparison_markdown(compared.outcome), nl=False, err=takes_stdout(json))
    else:
        show(comparison_summary(compared.outcome, verbose=is_verbose()), err=takes_stdout(json))
        show_notes(comparison_notes(compared.outcome), err=takes_stdout(json))
    if compared.failure is not None:
        raise DeviceError(
            compared.failure,
            "earlier measurements are kept; check the GPU with nvidia-smi",
        )
    raise click.exceptions.Exit(exit_code_of(compared.outcome))


def exit_code_of(outcome: Outcome) -> int:
    """A gate opens only where nothing is slower and the limit is ruled out."""
    if outcome.has_regression:
        return NOT_MET
    return NOT_SHOWN if outcome.not_shown else 0
