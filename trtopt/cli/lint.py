"""`trtopt lint`: advice where no rewrite is safe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click

from trtopt.cli.declared import OnnxFile, option
from trtopt.cli.exit_codes import NOT_MET
from trtopt.cli.options.completion import lint_check_names, lists_of
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json
from trtopt.requests.shared import Target
from trtopt.targets import DEFAULT

_SHOWN = 5
"""So many findings of a check are listed without -v."""


@click.command()
@click.argument("model", type=OnnxFile())
@option("target", Annotated[Target, "TensorRT to check for."], DEFAULT)
@json_option("trtopt.lint", "the findings")
@click.option(
    "--fail-on",
    metavar="CHECK,…",
    shell_complete=lists_of(lint_check_names),
    help="Exit with 3 if one of these checks (or `any`) finds something.",
)
def lint(model: Path, target: str, json: JsonOutput | None, fail_on: str | None) -> None:
    """Show what in the ONNX file MODEL will be slow on TensorRT, why, and what would help."""
    from trtopt.cli.console import is_verbose, say
    from trtopt.errors import UsageError
    from trtopt.printable import counted
    from trtopt.rewrite.lint import CHECKS, lint_model

    requested = {name.strip() for name in (fail_on or "").split(",") if name.strip()}
    known = {check.name for check in CHECKS}
    if unknown := requested - known - {"any"}:
        raise UsageError(
            f"there is no check {sorted(unknown)[0]!r}", f"choose of any, {', '.join(sorted(known))}"
        )
    report = lint_model(model, target=target)
    write_json(json, report)
    if not takes_stdout(json):
        say(f"{counted(len(report.advice), 'finding')} in {report.nodes} nodes for TensorRT {report.target}")
        for check in CHECKS:
            matching = [item for item in report.advice if item.check == check.name]
            if matching:
                say(f"{check.name}: {check.effect}", f"  → {check.remedy}")
                shown = matching if is_verbose() else matching[:_SHOWN]
                for item in shown:
                    say(f"    {item.node or 'model'}: {item.reason}")
                    if item.remedy != check.remedy:
                        say(f"      → {item.remedy}")
                if hidden := len(matching) - len(shown):
                    say(f"    and {hidden} more: -v lists them")
    found_names = {item.check for item in report.advice}
    if ("any" in requested and found_names) or requested & found_names:
        raise click.exceptions.Exit(NOT_MET)
