"""`trtopt compare`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click

from trtopt.cli.declared import command
from trtopt.cli.exit_codes import NOT_MET, NOT_SHOWN
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json
from trtopt.requests.measure import CompareRequest

if TYPE_CHECKING:
    from trtopt.measure.analysis.outcomes import Outcome


@command(CompareRequest, has_sections=True)
@click.option("--markdown", is_flag=True, help="Print Markdown tables, for a pull request.")
@json_option("trtopt.compare", "the comparison, raw samples included,")
@click.option("--input", metavar="DATA", hidden=True)
@click.option("--calib", metavar="DATA", hidden=True)
def compare(
    request: CompareRequest,
    markdown: bool,
    json: JsonOutput | None,
    input: str | None,
    calib: str | None,
) -> None:
    """Compare B with the baseline A, batch by batch.

    A and B are result files of `trtopt bench` or trtexec, or build folders or engines, which take turns in
    one process. With --builds K they may be ONNX files, each built K times.

    Verdicts on latency: FASTER, SLOWER, SAME or UNDECIDED, each with its reasons. Exits with 3 if B is slower
    at any batch size, and with 5 if B is not shown to be within --fail-on of A, so that it can gate a CI.
    --control needs no B, nor does --across-contracts with two contracts, nor --builds, which then compares
    the builds of one model.
    """
    from trtopt.cli.console import show_view
    from trtopt.cli.progress import listening
    from trtopt.errors import DeviceError
    from trtopt.recipe import make_recipe
    from trtopt.report.comparison import comparison_view
    from trtopt.workflows.compare.compare import compare as run

    fields = cast("dict[str, Any]", request.recipe)
    profile, data = fields.pop("profile", None), request.data if request.builds is not None else None
    recipe = make_recipe(profile, fields | {"calib": calib})
    if calib is None and data is not None and recipe.precision is not None:
        recipe = make_recipe(profile, fields | {"calib": data})
    request = replace(request, data=input or request.data, recipe=recipe)
    with listening() as listener:
        compared = run(request, listener)
    write_json(json, compared.report, indent=None)
    if markdown:
        click.echo(comparison_view(compared.outcome).markdown(), nl=False, err=takes_stdout(json))
    else:
        show_view(comparison_view(compared.outcome), err=takes_stdout(json))
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
