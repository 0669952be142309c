"""`trtopt compare`."""

from __future__ import annotations

from pathlib import Path

import click

_REGRESSION = 3


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--threshold", type=float, default=0.01, show_default=True, help="What difference matters, as a share."
)
@click.option("--markdown", is_flag=True, help="Print a Markdown table, for a pull request.")
@click.option("--force", is_flag=True, help="Compare although the machines differ.")
@click.pass_context
def compare(context: click.Context, a: Path, b: Path, threshold: float, markdown: bool, force: bool) -> None:
    """Judge result file B against the baseline A, batch by batch.

    Verdicts on latency: FASTER, SLOWER, SAME or UNDECIDED, each with its reasons. Exits with 3 if B is slower
    at any batch size, so that it can gate a CI.
    """
    from rich.console import Console

    from trtopt.pipeline.compare import compare_results
    from trtopt.report.comparison import comparison_markdown, comparison_summary

    result = compare_results(a, b, threshold=threshold, force=force)
    if markdown:
        click.echo(comparison_markdown(result), nl=False)
    else:
        Console().print(comparison_summary(result))
    if result.has_regression:
        context.exit(_REGRESSION)
