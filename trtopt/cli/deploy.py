"""`trtopt deploy`."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.options.outputs import output_option


@click.group()
def deploy() -> None:
    """Deploy a plan to a server."""


@deploy.command()
@click.argument("plan", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@output_option("FOLDER", "The model repository's folder.", required=True)
@click.option("--name", metavar="NAME", help="The model's name [default: that of PLAN's file].")
def triton(plan: Path, output: Path, name: str | None) -> None:
    """Write PLAN into a Triton model repository, as the next version of a model.

    Writes the engine, config.pbtxt with dynamic batching, instances, CUDA graphs and warm-up, and a README
    with the commands to start a server and to load it. PLAN is what `trtopt plan --for triton` wrote.
    """
    from trtopt.cli.console import say
    from trtopt.workflows.plan.deployment import deploy_triton

    say(f"trtopt: written: {deploy_triton(plan, output, name=name)}", err=True)
