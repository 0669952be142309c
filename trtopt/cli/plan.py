"""`trtopt plan`."""

from __future__ import annotations

import click

from trtopt.cli.declared import command
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json
from trtopt.requests.serve import PlanRequest


@command(PlanRequest)
@click.option(
    "--verify", is_flag=True, help="Run the plan under its load, and show prediction and measurement."
)
@json_option("trtopt.plan", "the plan")
def plan(request: PlanRequest, verify: bool, json: JsonOutput | None) -> None:
    """Choose engines, workers, batch sizes and a delay for a latency under a load, by simulation.

    SWEEP is a folder of `trtopt sweep`, or a build folder with results of `trtopt bench --json` in it;
    with several folders, the engines of all are candidates. `trtopt.serving.EnginePool.open` loads the plan.
    """
    from trtopt.cli.console import show_view
    from trtopt.cli.progress import phases
    from trtopt.report.planning import plan_view
    from trtopt.workflows.plan.plan import plan as make
    from trtopt.workflows.plan.trial_runs import verify as put_to_the_test

    with phases("planning") as enter:
        made = make(request, enter)
        if verify:
            made = put_to_the_test(request.output, request.timeout, enter, request.trust)
    write_json(json, made)
    show_view(plan_view(made), err=takes_stdout(json))
