"""The commands that serve engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from trtopt.cli.command import Group, command
from trtopt.cli.outputs import json_option

if TYPE_CHECKING:
    from trtopt.requests.serve import DeployRequest, PlanRequest


@command("serve.PlanRequest")
@json_option("trtopt.plan", "the plan")
def plan(request: PlanRequest) -> None:
    """Choose engines, workers and delay for a latency under a load.

    Setups are simulated, batch sizes included. SWEEP is a folder of `trtopt sweep`, or a build folder with
    results of `trtopt bench --json` in it; with several folders, the engines of all are candidates.
    `trtopt.serving.EnginePool.open` loads the plan.
    """
    from trtopt.cli.console import phases, show_result
    from trtopt.workflows.plan.plan import plan as make, require_goal

    with phases("planning") as listener:
        made = make(replace(request, listener=listener))
    show_result(made)
    require_goal(made)


@click.group(cls=Group, synonyms=("serve", "triton"))
def deploy() -> None:
    """Write engines as a Triton model repository."""


@deploy.command(request="serve.DeployRequest")
def triton(request: DeployRequest) -> None:
    """Write an engine as the next version of a Triton model.

    Writes into a model repository the engine, config.pbtxt with dynamic batching, instances, CUDA graphs and
    warm-up, and a README with the commands to start a server and to load it. SOURCE is what `trtopt plan`
    wrote; a folder of `trtopt sweep`, whose knee is served; or a build folder. Triton serves one engine, with
    batches of any size: where SOURCE has an engine for each size, one is built with an optimisation profile
    for each.
    """
    from trtopt.cli.console import perform, say
    from trtopt.workflows.plan.deploy import deploy as run

    version = perform(run, request)
    say(f"trtopt: written: {version}; {version.parent / 'README.md'} shows how to serve it", err=True)
