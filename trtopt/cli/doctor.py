"""`trtopt doctor`."""

from __future__ import annotations

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(as_json: bool) -> None:
    """Tell what this machine has, which commands work here and what to install for the others."""
    from rich.console import Console

    from trtopt.pipeline.doctor import examine
    from trtopt.records import to_json
    from trtopt.report.doctor import doctor_summary

    findings = examine()
    if as_json:
        click.echo(to_json(findings), nl=False)
    else:
        Console().print(doctor_summary(findings))
